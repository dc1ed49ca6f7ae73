"""Worker identity: a shared token that can be rotated without a gap."""

import hmac
from pathlib import Path

from trace_etl.dispatcher.task_api.watched_files import Watched
from trace_etl.model.errors import Unauthenticated


class WorkerTokens:
    """The tokens of a file, one a line, all valid at once: old and new, while rotating."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: list[bytes] = []
        self._watched = Watched(path, self._load)

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raises Unauthenticated. Every token is compared, in constant time."""
        given = headers.get(b"x-trace-worker-token", b"")
        self._watched.refresh()
        if self._knows(given):
            return
        self._watched.refresh_now()  # a new one, this very moment?
        if not self._knows(given):
            raise Unauthenticated("X-Trace-Worker-Token is missing or not valid")

    def _knows(self, given: bytes) -> bool:
        matches = [hmac.compare_digest(given, token) for token in self._tokens]
        return any(matches)

    def _load(self) -> None:
        lines = self._path.read_bytes().splitlines()
        self._tokens = [line.strip() for line in lines if line.strip()]
