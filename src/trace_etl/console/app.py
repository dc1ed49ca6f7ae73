"""The HTTP app of the console."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from trace_etl.api.body import Reply
from trace_etl.api.body import Request as Body
from trace_etl.console.files import StaticFiles
from trace_etl.console.guard import Guard
from trace_etl.console.proxy import TIMEOUT, Proxy
from trace_etl.console.sessions import Session, Sessions
from trace_etl.console.settings import ConsoleSettings
from trace_etl.http.app import new_app
from trace_etl.http.user_tokens import bearer_token
from trace_etl.model.errors import Forbidden, Unauthenticated, Unavailable

CSRF_HEADER = "x-trace-csrf"
_MAX_BODY = 2 * 1024 * 1024
_PAGES = ("/", "/login", "/dags", "/datasets", "/tasks", "/query", "/operations")
_METHODS = ["GET", "POST", "PUT", "DELETE"]


class LoginRequest(Body):
    """The code of a one-time link, or a bearer token."""

    code: str | None = Field(None, max_length=256)
    token: str | None = Field(None, max_length=8192)

    @model_validator(mode="after")
    def _check_one(self) -> "LoginRequest":
        if (self.code is None) == (self.token is None):
            raise ValueError("give either `code` or `token`")
        return self


class LinkReply(Reply):
    path: str
    """The path to open in a browser. It works once."""
    expires_seconds: float


@asynccontextmanager
async def open_app(cfg: ConsoleSettings) -> AsyncGenerator[FastAPI]:
    """Open the client of the services and yield the app."""
    context = ssl.create_default_context(cafile=str(cfg.tls_ca) if cfg.tls_ca else None)
    # Each open page keeps one connection for its events.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(
        verify=context, timeout=TIMEOUT, limits=limits, trust_env=False
    ) as http:
        proxy = Proxy(http, cfg.api_url.rstrip("/"), cfg.query_url.rstrip("/"))
        yield make_app(cfg, proxy)


def make_app(cfg: ConsoleSettings, proxy: Proxy) -> FastAPI:
    """Make the HTTP app."""
    app = new_app("Trace console", max_body=_MAX_BODY)
    app.add_middleware(Guard, origins=cfg.origins)
    files = StaticFiles(Path(__file__).parent / "static")
    console = Console(Sessions(cfg.console_session_seconds, cfg.console_link_seconds), proxy)

    async def get_page(request: Request) -> Response:
        return files.page.respond(request, "no-cache")

    async def get_file(request: Request) -> Response:
        return files.respond(request, request.path_params["version"], request.path_params["name"])

    for page in _PAGES:
        app.add_route(page, get_page)
        if page != "/":
            app.add_route(page + "/{rest:path}", get_page)
    app.add_route("/static/{version}/{name:path}", get_file)
    app.add_api_route("/links", console.create_link, methods=["POST"])
    app.add_api_route("/session", console.get_session, methods=["GET"])
    app.add_api_route("/session", console.log_in, methods=["POST"])
    app.add_api_route("/session", console.log_out, methods=["DELETE"])
    app.add_route("/api/{path:path}", console.forward, methods=_METHODS)
    return app


class Console:
    """Login, logout and the forwarded calls."""

    def __init__(self, sessions: Sessions, proxy: Proxy) -> None:
        self._sessions = sessions
        self._proxy = proxy

    async def create_link(self, request: Request) -> LinkReply:
        """Create a one-time link for the user of the bearer token. `trace console` calls it."""
        token = bearer_token(request)
        await self._identify(token)
        path = f"/login#{self._sessions.create_link(token)}"
        return LinkReply(path=path, expires_seconds=self._sessions.link_seconds)

    async def log_in(self, body: LoginRequest, request: Request) -> Response:
        """Open a session and set its cookie."""
        token = body.token.strip() if body.token else self._sessions.redeem(body.code or "")
        if not token:
            raise Unauthenticated(
                "this link was used or has expired; run `trace console` to get a new one"
            )
        user = await self._identify(token)
        self._sessions.close(request.cookies.get(_make_cookie_name(request), ""))
        key, session = self._sessions.open(token)
        response = _describe(user, session)
        response.set_cookie(
            _make_cookie_name(request),
            key,
            max_age=int(self._sessions.session_seconds),
            secure=_is_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def get_session(self, request: Request) -> Response:
        """Return the user of the session, their role, and the CSRF token; 204 without a session."""
        session = self._sessions.find(request.cookies.get(_make_cookie_name(request), ""))
        if session is None:  # not an error: the page asks first, and then shows the login
            return Response(status_code=204)
        return _describe(await self._identify(session.token), session)

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        _check_csrf(request, self._find(request))
        self._sessions.close(request.cookies[_make_cookie_name(request)])
        response = Response(status_code=204)
        response.delete_cookie(
            _make_cookie_name(request), secure=_is_https(request), httponly=True, samesite="strict"
        )
        return response

    async def forward(self, request: Request) -> Response:
        """Forward a call of the page to the user API or the Query Service."""
        session = self._find(request)
        if request.method not in ("GET", "HEAD"):
            _check_csrf(request, session)
        return await self._proxy.forward(request, session.token)

    def _find(self, request: Request) -> Session:
        session = self._sessions.find(request.cookies.get(_make_cookie_name(request), ""))
        if session is None:
            raise Unauthenticated("log in: run `trace console` and open the link that it prints")
        return session

    async def _identify(self, token: str) -> dict[str, Any]:
        """Return the user of a token. Raises Unauthenticated, Forbidden, Unavailable."""
        answer = await self._proxy.identify(token)
        try:
            content = await answer.aread()
        finally:
            await answer.aclose()
        if answer.status_code in (401, 403):
            kind = Unauthenticated if answer.status_code == 401 else Forbidden
            raise kind(str(orjson.loads(content).get("detail", "the token is not valid")))
        if answer.is_error:
            raise Unavailable(f"the user API answered with HTTP {answer.status_code}; try again")
        return cast(dict[str, Any], orjson.loads(content))


def _describe(user: dict[str, Any], session: Session) -> JSONResponse:
    content = {**user, "csrf": session.csrf}
    return JSONResponse(content, headers={"cache-control": "no-store"})


def _check_csrf(request: Request, session: Session) -> None:
    # Not compared in constant time: the token is as secret as the session, and lives as long.
    if request.headers.get(CSRF_HEADER) != session.csrf:
        raise CsrfMismatch(
            f"the header {CSRF_HEADER} does not belong to this session; reload the page"
        )


class CsrfMismatch(Forbidden, code="csrf_mismatch"):
    """A request that changes something lacks the token of its session."""


def _make_cookie_name(request: Request) -> str:
    """Name the cookie after the port: browsers share cookies between the ports of a host."""
    if _is_https(request):
        return "__Host-trace-session"
    return f"trace-session-{urlsplit(_get_origin(request)).port or 80}"


def _is_https(request: Request) -> bool:
    return _get_origin(request).startswith("https:")


def _get_origin(request: Request) -> str:
    return str(request.scope["trace.origin"])
