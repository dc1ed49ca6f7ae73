"""The HTTP side of the development chain: POST / with a JSON body."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_BODY_BYTES = 5 * 1024 * 1024
_JSON_TYPES = frozenset({"application/json", "application/json-rpc", "application/jsonrequest"})

AnswerRequest: TypeAlias = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def listen(answer: AnswerRequest, host: str, port: int) -> AsyncGenerator[str]:
    """Listen inside the `with` block; yields the URL. Raises OSError if the port is in use."""

    async def respond(request: Request) -> Response:
        body = await _read_body(request)
        return Response(await answer(body), media_type="application/json")

    app = Starlette(routes=[Route("/", respond, methods=["POST"])])
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpToolsProtocol(config, state, {}), host, port
    )
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in tuple(state.connections):
            connection.shutdown()
        await server.wait_closed()


async def _read_body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _JSON_TYPES:
        raise HTTPException(415, "only application/json is supported")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "the request body is too large")
    return bytes(body)
