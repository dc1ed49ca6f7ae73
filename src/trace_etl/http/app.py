"""Create the FastAPI app of a service: health check, problem documents, body limit."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trace_etl import __version__
from trace_etl.api.body import Health
from trace_etl.http.problems import install_problem_handlers
from trace_etl.model.errors import Unavailable

MAX_BODY = 16 * 1024 * 1024


def new_app(
    title: str,
    *,
    max_body: int = MAX_BODY,
    is_healthy: Callable[[], bool] = lambda: True,
    **options: Any,
) -> FastAPI:
    """Create an app with `GET /healthz`, problem documents for all errors, and a body limit.

    `/healthz` answers 503 while `is_healthy` returns False.
    """
    # No /docs and /redoc: their pages load scripts of a third party, and users would paste tokens there.
    app = FastAPI(
        title=title,
        version=__version__,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        **options,
    )
    install_problem_handlers(app)
    app.add_middleware(BodyLimit, max_body=max_body)

    async def healthz() -> Health:
        """Report that the process is alive, and its version."""
        if not is_healthy():
            raise Unavailable("the process runs, but cannot do its work; see its log")
        return Health(version=__version__)

    app.add_api_route("/healthz", healthz, methods=["GET"], tags=["health"])
    _serve_document(app)
    return app


def add_routes(app: FastAPI, router: APIRouter) -> None:
    """Add the routes of a router.

    `include_router` would build them a second time during the first request, which blocks all others.
    """
    app.router.routes.extend(router.routes)


def _serve_document(app: FastAPI) -> None:
    """Serve `GET /openapi.json`, which needs no token.

    The document is built once, in a thread: it takes up to a second, in which other requests must be answered.
    """
    rendered: list[bytes] = []
    building = threading.Lock()

    def render() -> bytes:
        with building:
            if not rendered:
                rendered.append(orjson.dumps(app.openapi()))
            return rendered[0]

    async def get_document(_: Request) -> Response:
        content = rendered[0] if rendered else await asyncio.to_thread(render)
        return Response(content, media_type="application/json")

    app.add_route("/openapi.json", get_document, include_in_schema=False)


class BodyLimit:
    """Middleware that refuses request bodies above a size with 413, before they fill the memory."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise HTTPException(
                    413, f"the body exceeds {self._max_body} bytes; send less at once"
                )
            return message

        await self._app(scope, receive_limited, send)
