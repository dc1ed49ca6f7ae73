"""uvicorn's HTTP protocol with limits."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from weakref import ref

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from trace_etl.http.event_stream import ABORT
from trace_etl.http.server.connection_limits import (
    ConnectionLimits,
    LimitExceeded,
    RequestMeter,
    render_refusal,
)

_MAX_PIPELINED = 32


class _AnswerTransport:
    """The transport of one answer.

    Closing it while the client still sends leaves the client time to read the answer. The transport does not
    keep the connection: objects of a failed request may stay until the garbage collector runs.
    """

    __slots__ = ("_find_connection",)

    def __init__(self, connection: "LimitedAsgiProtocol") -> None:
        self._find_connection = ref(connection)

    def write(self, data: bytes) -> None:
        if (connection := self._find_connection()) is not None:
            connection.transport.write(data)

    def is_closing(self) -> bool:
        connection = self._find_connection()
        return connection is None or connection.transport.is_closing()

    def close(self) -> None:
        if (connection := self._find_connection()) is not None:
            connection.close_after_answer()


class LimitedAsgiProtocol(HttpToolsProtocol):
    """One client connection. It reports to a RequestMeter and refuses what exceeds its limits."""

    def __init__(self, limits: ConnectionLimits, on_end: Callable[[], None], **options: Any):
        super().__init__(**options)
        self.meter: RequestMeter | None = None
        self._limits = limits
        self._on_end = on_end
        self._ignores_input = False
        self._keeps_alive = True

    # --- callbacks of the transport -----------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.meter = RequestMeter(self._limits, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # The callbacks refer to this protocol: once they are gone, it is freed without the garbage collector.
        self.cycle = cast("RequestResponseCycle", None)
        self.pipeline.clear()
        self._on_end()

    def resume_writing(self) -> None:
        self._get_meter().note_drained()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._get_meter().receive(len(data))
        super().data_received(data)
        if not self._ignores_input and self._get_meter().has_endless_field:
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def shutdown(self) -> None:
        self._keeps_alive = False
        super().shutdown()

    # --- callbacks of the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._get_meter().begin()
        super().on_message_begin()
        # An event stream drops a client that does not read.
        extensions = {**self.scope.get("extensions", {}), ABORT: self.transport.abort}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._get_meter().waiting > _MAX_PIPELINED:
            self.refuse(HTTPStatus.TOO_MANY_REQUESTS)
            raise LimitExceeded
        super().on_headers_complete()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle.more_body:
            # An answer that comes before the end of the body says that the connection will be closed.
            self._keeps_alive, cycle.keep_alive = cycle.keep_alive, False
            cycle.transport = cast("asyncio.Transport", _AnswerTransport(self))

    def on_body(self, body: bytes) -> None:
        if not self._get_meter().add_body(len(body)):
            self._close()
            raise LimitExceeded
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._get_meter().end()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = self._keeps_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._get_meter().answer()
        if self._get_meter().is_closed:
            self.flow.resume_reading()  # what the client still sends is discarded
        else:
            super().on_response_complete()

    def close_after_answer(self) -> None:
        """Close the connection, at once if the client has sent its whole request."""
        if self._get_meter().is_receiving:
            self._close()
        else:
            self.transport.close()

    # --- refusing -----------------------------------------------------------------------------

    def _count_head(self, size: int) -> None:
        if not self._get_meter().add_head(size):
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise LimitExceeded

    def send_400_response(self, msg: str) -> None:
        if not self._ignores_input:  # otherwise refused for another reason
            self.refuse(HTTPStatus.BAD_REQUEST)

    def refuse(self, status: HTTPStatus) -> None:
        """Send an error and close. If an earlier request is being answered, close after its answer."""
        self._ignores_input = True
        if self._get_meter().is_answering:
            self.cycle.keep_alive = False
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_open = cycle is not None and not cycle.response_complete
        if not self._get_meter().is_closed and not (is_open and self.cycle.response_started):
            self.transport.write(render_refusal(status))
            if is_open:  # the app runs since the head arrived: it must not answer, too
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self._close()

    def _close(self) -> None:
        self._ignores_input = True
        self._get_meter().close()

    def _get_meter(self) -> RequestMeter:
        assert self.meter is not None
        return self.meter
