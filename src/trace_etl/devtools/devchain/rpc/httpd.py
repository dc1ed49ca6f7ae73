"""The HTTP side of the development chain: POST / with a JSON body."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from trace_etl.http.server.acceptor import Acceptor
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.open_files import fit_to_descriptors
from trace_etl.http.server.small_server import RpcAnswer, RpcRequest, SmallHttpProtocol

MAX_BODY_BYTES = 5 * 1024 * 1024
_JSON_TYPES = frozenset({b"application/json", b"application/json-rpc", b"application/jsonrequest"})

AnswerRequest: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class JsonRpcApp:
    """Passes the body of a call to `answer`, or refuses the request."""

    def __init__(self, answer: AnswerRequest) -> None:
        self._answer = answer

    async def answer(self, request: RpcRequest) -> RpcAnswer:
        """Answer one request of the small HTTP server."""
        media = dict(request.headers).get(b"content-type", b"")
        if request.method != "POST":
            return _refuse(405, b"only POST is allowed", (b"allow", b"POST"))
        if request.target()[0] != "/":
            return _refuse(404, b"the endpoint is /")
        if media.split(b";")[0].strip().lower() not in _JSON_TYPES:
            return _refuse(415, b"only application/json is supported")
        if request.has_large_body:
            return _refuse(413, b"the request body is too large")
        return RpcAnswer(await self._answer(request.body))


def _refuse(status: int, detail: bytes, *headers: tuple[bytes, bytes]) -> RpcAnswer:
    return RpcAnswer(detail + b"\n", status, headers, b"text/plain")


@asynccontextmanager
async def listen(
    answer: AnswerRequest, host: str, port: int, limits: ConnectionLimits | None = None
) -> AsyncGenerator[str]:
    """Listen inside the `with` block; yields the URL. Raises OSError if the port is in use."""
    app, fitting = JsonRpcApp(answer), fit_to_descriptors(limits or ConnectionLimits(), 1)

    def connect(on_end: Callable[[], None]) -> SmallHttpProtocol:
        return SmallHttpProtocol(app, fitting, on_end, max_body=MAX_BODY_BYTES)

    sock = socket.create_server((host, port))
    acceptor = Acceptor(sock, connect, fitting, tls=None)
    acceptor.start()
    try:
        yield f"http://{host}:{sock.getsockname()[1]}"
    finally:
        await acceptor.stop(grace=0.0)
