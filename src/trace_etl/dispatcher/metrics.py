"""What a Dispatcher process counts. One registry a process, as scrapers expect it.

No label holds a name that an org chose: these figures are shown to readers of every org.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

disable_created_metrics()  # when a counter began helps nobody, and doubles every scrape
REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60)

REQUESTS = Counter(
    "trace_http_requests",
    "Calls answered, by listener, route and status.",
    ["listener", "method", "route", "status"],
    registry=REGISTRY,
)
TRANSITIONS = Counter(
    "trace_task_transitions",
    "Tasks that came to have a status through this process.",
    ["to"],
    registry=REGISTRY,
)
REAPS = Counter(
    "trace_lease_reaps", "Attempts ended for their silence, by cause.", ["cause"], registry=REGISTRY
)
BATCH = Histogram(
    "trace_group_commit_size",
    "Calls written in one commit, by batch writer.",
    ["writer"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200),
    registry=REGISTRY,
)
LOOP = Histogram(
    "trace_loop_seconds", "One pass of a loop.", ["loop"], buckets=_SECONDS, registry=REGISTRY
)
LOOP_FAILURES = Counter("trace_loop_failures", "Passes that failed.", ["loop"], registry=REGISTRY)
LISTENERS = Gauge(
    "trace_change_listeners", "Clients that follow the stream of changes.", registry=REGISTRY
)


def moved(statuses: Iterable[str]) -> None:
    """Count tasks that came to have these statuses."""
    for status, n in Tally(statuses).items():
        _to(status).inc(n)


def started(count: int) -> None:
    """Count tasks that came to run."""
    if count:
        _to("Running").inc(count)


@cache
def _to(status: str) -> Counter:
    """Finding the label costs more than counting."""
    return TRANSITIONS.labels(status)


class CountRequests:
    """Counts every answer of an app under its route's own path, never under what was asked for."""

    def __init__(self, app: ASGIApp, listener: str) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if route != "other" else "other"
                REQUESTS.labels(self._listener, method, route, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)
