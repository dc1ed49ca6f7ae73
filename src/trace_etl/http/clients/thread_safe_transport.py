"""Send the requests of several threads through one httpx client, each on connections of its own.

httpcore's pool checks whether an idle connection was closed by its server in two steps. Between them,
another thread can take the connection, send a request and get its answer; the pool then closes the
connection under that thread. The thread continues to read and write the closed descriptor, which the
process may have given to another socket or file by then.
"""

import ssl
import threading
from collections.abc import Callable, Iterator

import httpx


class ThreadSafeTransport(httpx.BaseTransport):
    """Keeps one pool of connections per request that runs at the same time."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        self._verify = verify
        self._lock = threading.Lock()
        self._idle: list[httpx.HTTPTransport] = []
        self._is_closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        pool = self._take()
        try:
            answer = pool.handle_request(request)
        except BaseException:
            self._give_back(pool)
            raise
        assert isinstance(answer.stream, httpx.SyncByteStream)
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Body(answer.stream, lambda: self._give_back(pool)),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for pool in idle:
            pool.close()

    def _take(self) -> httpx.HTTPTransport:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return httpx.HTTPTransport(verify=self._verify, trust_env=False)

    def _give_back(self, pool: httpx.HTTPTransport) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(pool)
                return
        pool.close()


class _Body(httpx.SyncByteStream):
    """A response body that gives its pool back when it is closed."""

    def __init__(self, body: httpx.SyncByteStream, on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close: Callable[[], None] | None = on_close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            try:
                self._body.close()
            finally:
                on_close()
