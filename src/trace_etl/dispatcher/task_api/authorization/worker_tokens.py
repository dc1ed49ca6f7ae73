"""Worker authentication by shared tokens that can be rotated without downtime."""

import hmac
from pathlib import Path

from trace_etl.dispatcher.task_api.authorization.watched_files import WatchedPath
from trace_etl.model.errors import Unauthenticated


class WorkerTokens:
    """Tokens from a file, one per line. All are valid, so a rotation can list the old and the new token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: list[bytes] = []
        self._watched = WatchedPath(path, self._load)

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Check the worker token in constant time. Raises Unauthenticated."""
        presented = headers.get(b"x-trace-worker-token", b"")
        self._watched.refresh()
        if self._matches(presented):
            return
        self._watched.refresh_now()  # the token may have been added within the last millisecond
        if not self._matches(presented):
            raise Unauthenticated(
                "X-Trace-Worker-Token is missing or not valid; send the current worker token"
            )

    def _matches(self, presented: bytes) -> bool:
        results = [hmac.compare_digest(presented, token) for token in self._tokens]
        return any(results)

    def _load(self) -> None:
        lines = self._path.read_bytes().splitlines()
        self._tokens = [line.strip() for line in lines if line.strip()]
