"""Forward requests of the page to the user API and the Query Service, with the token of the session."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import httpx
from fastapi import Request, Response
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from trace_etl.http.event_stream import ABORT
from trace_etl.model.errors import NotFound, Unavailable

_PREFIX = b"/api"
_TO_SERVICE = ("accept", "content-type", "last-event-id")
_TO_BROWSER = ("content-type", "retry-after", "trace-query-id", "trace-pinned")
_QUERY_PATHS = (b"/v1/query", b"/v1/snapshots/")
# Longer than the heartbeat of the change stream and than the time limit of a query.
TIMEOUT = httpx.Timeout(5.0, read=90.0, write=30.0, pool=5.0)


@dataclass(frozen=True)
class Proxy:
    """Forwards to two services. It adds no right: each service checks the token at every call."""

    http: httpx.AsyncClient
    api_url: str
    query_url: str

    async def identify(self, token: str) -> httpx.Response:
        """Ask the user API for the user of a token and the user's role. Raises Unavailable."""
        return await self._send(self.http.build_request("GET", f"{self.api_url}/v1/me"), token)

    async def forward(self, request: Request, token: str) -> Response:
        """Forward one request and stream its answer. Raises NotFound, Unavailable."""
        raw_path: bytes = request.scope["raw_path"].partition(b"?")[0]
        path = raw_path.removeprefix(_PREFIX)
        if not path.startswith(b"/v1/"):
            raise NotFound(f"unknown endpoint {request.method} {request.url.path}")
        base = self.query_url if path.startswith(_QUERY_PATHS) else self.api_url
        query = request.scope["query_string"]
        url = base + path.decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
        headers = {name: request.headers[name] for name in _TO_SERVICE if name in request.headers}
        sent = self.http.build_request(
            request.method, url, headers=headers, content=await request.body()
        )
        answer = await self._send(sent, token)
        abort: Callable[[], None] | None = request.scope.get("extensions", {}).get(ABORT)
        return StreamingResponse(
            _read(answer, abort),
            answer.status_code,
            {
                "cache-control": "no-store",
                **{name: answer.headers[name] for name in _TO_BROWSER if name in answer.headers},
            },
            background=BackgroundTask(answer.aclose),
        )

    async def _send(self, request: httpx.Request, token: str) -> httpx.Response:
        request.headers["authorization"] = f"Bearer {token}"
        request.headers["accept-encoding"] = "identity"
        try:
            return await self.http.send(request, stream=True)
        except httpx.HTTPError as error:
            url = f"{request.url.scheme}://{request.url.netloc.decode()}"
            name = "Query Service" if self.query_url == url != self.api_url else "user API"
            raise Unavailable(
                f"the {name} at {url} does not answer ({error or type(error).__name__}); see `trace status`"
            ) from error


async def _read(answer: httpx.Response, abort: Callable[[], None] | None) -> AsyncGenerator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError:
        # The result is incomplete. Ending the answer normally would hide that from the page.
        if abort is not None:
            abort()
    finally:
        await answer.aclose()
