"""Create the FastAPI app of a service: health check, problem documents, body limit."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, HTTPException
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
    return app


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
                raise HTTPException(413, f"the body exceeds {self._max_body} bytes")
            return message

        await self._app(scope, receive_limited, send)
