"""Prometheus metrics of a Dispatcher process, in one registry.

No label holds a name that an organisation chose, because readers of all organisations see these metrics.
"""

from collections import Counter as Multiset
from collections.abc import Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

disable_created_metrics()  # `_created` series double every scrape and serve no dashboard
REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60)

REQUESTS = Counter(
    "trace_http_requests",
    "HTTP requests answered, by listener, route and status.",
    ["listener", "method", "route", "status"],
    registry=REGISTRY,
)
TRANSITIONS = Counter(
    "trace_task_transitions",
    "Task status changes that this process committed.",
    ["to"],
    registry=REGISTRY,
)
REAPS = Counter(
    "trace_lease_reaps",
    "Attempts that the lease reaper ended, by cause.",
    ["cause"],
    registry=REGISTRY,
)
REJECTED_ANSWERS = Counter(
    "trace_rejected_answers",
    "Answers of nodes that contradicted a header. `corrected`: the task was committed with another answer. "
    "`failed`: no answer was right, so the attempt failed.",
    ["outcome"],
    registry=REGISTRY,
)
BATCH = Histogram(
    "trace_group_commit_size",
    "Calls written in one commit, by batch writer.",
    ["writer"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200),
    registry=REGISTRY,
)
LOOP = Histogram(
    "trace_loop_seconds",
    "Duration of one pass of a background loop.",
    ["loop"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
LOOP_FAILURES = Counter(
    "trace_loop_failures", "Passes of a background loop that failed.", ["loop"], registry=REGISTRY
)
SWEPT_OBJECTS = Counter(
    "trace_swept_objects", "Stored objects that were deleted.", ["kind"], registry=REGISTRY
)
SWEPT_BYTES = Counter(
    "trace_swept_bytes", "Bytes of stored objects that were deleted.", ["kind"], registry=REGISTRY
)
SWEEP_FAILURES = Counter(
    "trace_sweep_failures",
    "Prefixes and batches that the object store did not measure or delete.",
    registry=REGISTRY,
)
LISTENERS = Gauge(
    "trace_change_listeners", "Clients connected to the change stream.", registry=REGISTRY
)


def count_transitions(statuses: Iterable[str]) -> None:
    """Count one status change per item."""
    for status, n in Multiset(statuses).items():
        _get_status_counter(status).inc(n)


def count_started(count: int) -> None:
    """Count tasks that changed to Running."""
    if count:
        _get_status_counter("Running").inc(count)


@cache
def _get_status_counter(status: str) -> Counter:
    """Cache the labelled counter: looking up a label costs more than incrementing."""
    return TRANSITIONS.labels(status)


class CountRequests:
    """Middleware that counts responses by the route's declared path, never by the requested path."""

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
