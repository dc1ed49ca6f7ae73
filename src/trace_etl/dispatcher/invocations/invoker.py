"""Ask an invoker to run a function. The answer only says that the invocation was accepted."""

import os
from collections.abc import Callable
from pathlib import Path

import httpx

from trace_etl.model.errors import Unavailable

_TIMEOUT = 10.0


class LocalInvoker:
    """Speaks the Invoke call of AWS Lambda to a worker of this machine, over a Unix socket."""

    def __init__(self, path: Path, token: Callable[[], str]) -> None:
        self._token = token
        # By the descriptor of its directory: the path of a socket may have only 107 bytes.
        self._directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        transport = httpx.AsyncHTTPTransport(uds=f"/proc/self/fd/{self._directory}/{path.name}")
        self._http = httpx.AsyncClient(
            transport=transport, base_url="http://invoker", timeout=_TIMEOUT, trust_env=False
        )

    async def identify(self) -> str:
        """Return the id of the worker that would run a function now. Raises Unavailable."""
        return (await self._call("GET", "/worker", None, 200)).json()["worker_id"]

    async def invoke(self, runtime: str, payload: bytes) -> None:
        """Start a function and do not wait for it. Raises Unavailable."""
        await self._call("POST", f"/2015-03-31/functions/{runtime}/invocations", payload, 202)

    async def close(self) -> None:
        await self._http.aclose()
        os.close(self._directory)

    async def _call(
        self, method: str, path: str, content: bytes | None, expected: int
    ) -> httpx.Response:
        headers = {"X-Trace-Worker-Token": self._token(), "X-Amz-Invocation-Type": "Event"}
        try:
            reply = await self._http.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"the worker of functions does not answer: {error!r}") from error
        if reply.status_code != expected:
            raise Unavailable(f"the worker of functions answered {reply.status_code}: {reply.text}")
        return reply
