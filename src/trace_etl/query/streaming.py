"""Send the result of a query while the query runs."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trace_etl.http.client_connection import (
    ClientDisconnected,
    run_while_connected,
    wait_for_disconnect,
)
from trace_etl.http.event_stream import ABORT
from trace_etl.http.problems import problem
from trace_etl.model.errors import Fault, Invalid, NotFound, TraceError
from trace_etl.query.errors import QueryTimedOut

QUERY_ID_HEADER = "trace-query-id"
PINNED_HEADER = "trace-pinned"
_MAX_FAILURES = 1000
_log = structlog.stdlib.get_logger()


@dataclass
class RecentFailures:
    """The errors of aborted streams, which HTTP cannot report after the first bytes."""

    _problems: OrderedDict[UUID, tuple[Hashable, dict[str, Any]]] = field(
        default_factory=OrderedDict[UUID, tuple[Hashable, dict[str, Any]]]
    )

    def add(self, query_id: UUID, owner: Hashable, error: Exception) -> None:
        shown = error if isinstance(error, TraceError) else TraceError("internal error")
        self._problems[query_id] = (owner, problem(shown)[1])
        if len(self._problems) > _MAX_FAILURES:
            self._problems.popitem(last=False)

    def get(self, query_id: UUID, owner: Hashable) -> dict[str, Any]:
        """Return the problem document of a caller's query. Raises NotFound."""
        found, document = self._problems.get(query_id, (None, {}))
        if found != owner:
            raise NotFound(f"no failed query {query_id} is known to this process")
        return document


class ResultStream(Response):
    """A response whose body is sent piece by piece. It starts with the first piece.

    An error before that is an HTTP error. A later one aborts the connection, so that no client
    takes a part for the whole.
    """

    def __init__(
        self,
        produce: Callable[["ResultStream"], Awaitable[None]],
        on_failure: Callable[[UUID, Exception], None],
        media_type: str,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.query_id = uuid4()
        self.headers[QUERY_ID_HEADER] = str(self.query_id)
        self._produce, self._on_failure = produce, on_failure
        self._http_send: Send | None = None
        self._has_started = False

    async def send(self, piece: bytes) -> None:
        """Send a piece. Waits until the client has read most of what was sent before."""
        assert self._http_send is not None
        if not self._has_started:
            self._has_started = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await self._http_send(start)
        await self._http_send({"type": "http.response.body", "body": piece, "more_body": True})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._http_send = send
        try:
            await run_while_connected(self._produce(self), receive)
        except ClientDisconnected:
            return
        except Exception as error:
            if not self._has_started:
                raise
            self._on_failure(self.query_id, error)
            _log.warning("query_stream_aborted", query_id=str(self.query_id), error=repr(error))
            scope["extensions"][ABORT]()
            await wait_for_disconnect(receive)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def check_http_version(scope: Scope) -> None:
    """Refuse HTTP/1.0, where a complete body and an aborted one end in the same way."""
    if scope["http_version"] == "1.0":
        problem = "a streamed result needs HTTP/1.1; a proxy on the way must use it too"
        raise Invalid([Fault("format", problem)])


@dataclass(frozen=True)
class WorkingTime:
    """The time that a query has left. It stops while the client reads."""

    deadline: asyncio.Timeout

    def stop_during(
        self, send: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[bytes], Awaitable[None]]:
        loop = asyncio.get_running_loop()

        async def send_without_clock(piece: bytes) -> None:
            left = (self.deadline.when() or 0.0) - loop.time()
            self.deadline.reschedule(None)
            await send(piece)
            self.deadline.reschedule(loop.time() + left)

        return send_without_clock


@asynccontextmanager
async def limit_time(seconds: float, stream_seconds: float) -> AsyncGenerator[WorkingTime]:
    """Limit the time in which a query works, and the time until its client has read the result.

    Raises QueryTimedOut.
    """
    working = asyncio.timeout(seconds)
    try:
        async with asyncio.timeout(stream_seconds), working:
            yield WorkingTime(working)
    except TimeoutError as error:
        if working.expired():
            raise QueryTimedOut.of(f"ran longer than {seconds:g} s and was stopped") from error
        problem = f"its result was not sent and read within {stream_seconds:g} s"
        raise QueryTimedOut.of(problem) from error
