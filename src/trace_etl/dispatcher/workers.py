"""Worker identity: a shared token that can be rotated without a gap."""

import hmac
import os
import time
from pathlib import Path

from trace_etl.model.errors import Unauthenticated

_LOOK_AGAIN = 0.001  # seconds: thousands of calls a second ask


class WorkerTokens:
    """The tokens of a file, one a line, all valid at once: old and new, while rotating."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (-1, -1)
        self._looked = 0.0
        self._tokens: list[bytes] = []

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raises Unauthenticated. Every token is compared, in constant time."""
        given = headers.get(b"x-trace-worker-token", b"")
        if self._knows(given):
            return
        self._looked = 0.0  # a new one, this very moment?
        if not self._knows(given):
            raise Unauthenticated("X-Trace-Worker-Token is missing or not valid")

    def _knows(self, given: bytes) -> bool:
        matches = [hmac.compare_digest(given, token) for token in self._current()]
        return any(matches)

    def _current(self) -> list[bytes]:
        now = time.monotonic()
        if now < self._looked + _LOOK_AGAIN:
            return self._tokens
        self._looked = now
        file = os.stat(self._path)  # noqa: PTH116 - on the hot path
        changed = (file.st_mtime_ns, file.st_ino)
        if changed != self._seen:
            lines = self._path.read_bytes().splitlines()
            self._tokens = [line.strip() for line in lines if line.strip()]
            self._seen = changed
        return self._tokens
