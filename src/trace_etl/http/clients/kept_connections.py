"""HTTP calls of several threads, each on a connection that is kept for later calls.

The calls of a worker are many and small. The standard library spends a fifth of the processor time of httpx on them.
"""

import http.client
import select
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit


class NoAnswer(Exception):
    """There is no answer: the server cannot be reached, or the connection broke."""

    def __init__(self, error: Exception, *, may_have_arrived: bool) -> None:
        super().__init__(repr(error))
        self.may_have_arrived = may_have_arrived
        """Whether the server may have received the call."""


class KeptConnections:
    """Connections to one server. A thread has one for itself while it calls."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        self._is_plain = parts.scheme == "http"
        self._address, self._prefix = parts.netloc, parts.path.rstrip("/")
        self._tls = tls
        self._idle: list[http.client.HTTPConnection] = []
        self._is_closed = False

    def call(
        self, method: str, path: str, body: str, headers: Mapping[str, str], timeout: float
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer. Raises NoAnswer."""
        connection = self._take() or self._make()
        try:
            connection.timeout = timeout
            if connection.sock is None:
                connection.connect()
            else:
                connection.sock.settimeout(timeout)
        except OSError as error:
            connection.close()
            raise NoAnswer(error, may_have_arrived=False) from error
        try:
            connection.request(method, self._prefix + path, body.encode(), dict(headers))
            with connection.getresponse() as answer:
                received = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoAnswer(error, may_have_arrived=True) from error
        self._idle.append(connection)
        if self._is_closed:
            self.close()
        return answer.status, received

    def close(self) -> None:
        """Close the idle connections. Those in use are closed after their calls."""
        self._is_closed = True
        while (connection := self._take()) is not None:
            connection.close()

    def _make(self) -> http.client.HTTPConnection:
        if self._is_plain:
            return http.client.HTTPConnection(self._address)
        return http.client.HTTPSConnection(self._address, context=self._tls)

    def _take(self) -> http.client.HTTPConnection | None:
        """Return an idle connection that its server has not closed."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                return None
            if connection.sock is not None and not _has_ended(connection.sock.fileno()):
                return connection
            connection.close()
        return None


def _has_ended(fd: int) -> bool:
    """Whether an idle connection has something to read: its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
