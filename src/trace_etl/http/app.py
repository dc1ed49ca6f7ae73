"""A FastAPI app as every service of ours starts it."""

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trace_etl import __version__
from trace_etl.http.problems import install_problem_handlers

MAX_BODY = 16 * 1024 * 1024


class Health(BaseModel):
    status: str = "ok"
    version: str = __version__


def new_app(title: str, *, max_body: int = MAX_BODY, **options: Any) -> FastAPI:
    """An app with `GET /healthz`, problem documents for every refusal, and a limit on bodies."""
    app = FastAPI(title=title, version=__version__, redirect_slashes=False, **options)
    install_problem_handlers(app)
    app.add_middleware(BodyLimit, max_body=max_body)
    app.add_api_route("/healthz", _healthz, methods=["GET"], tags=["health"])
    return app


async def _healthz() -> Health:
    """Alive, and this version."""
    return Health()


class BodyLimit:
    """Refuses request bodies above a size before they fill the memory: 413."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_body:
                raise HTTPException(413, f"a body may have {self._max_body} bytes at most")
            return message

        await self._app(scope, counted, send)
