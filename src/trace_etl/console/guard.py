"""Middleware that refuses foreign hosts and origins, and adds the security headers to every response."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trace_etl.http.problems import problem_response
from trace_etl.model.errors import Forbidden

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_READS = ("GET", "HEAD")
_PRIVATE = ("/api/", "/session")


class Guard:
    """The first check of every request. A page of another origin can neither read nor act."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = {urlsplit(origin).netloc: origin for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            scope["trace.origin"] = self._check(scope)
        except Forbidden as error:
            await problem_response(error)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> str:
        """Return the origin that the browser uses. Raises Forbidden."""
        headers = Headers(scope=scope)
        if scope["path"] == "/healthz":  # probes use any address
            return ""
        # A host name of an attacker that resolves to this address would make the attacker's page same-origin.
        own = self._origins.get(headers.get("host", ""))
        if own is None:
            raise Forbidden(
                f"the console is not served at {headers.get('host', '')!r};"
                " add the address to TRACE_CONSOLE_ORIGINS"
            )
        path: str = scope["path"]
        is_private = path.startswith(_PRIVATE)
        if is_private and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Forbidden("requests of other sites are refused; open the console itself")
        if scope["method"] not in _READS and is_private and headers.get("origin") != own:
            raise Forbidden(
                "the Origin of a request that changes something must be the console's; send it from its page"
            )
        return own
