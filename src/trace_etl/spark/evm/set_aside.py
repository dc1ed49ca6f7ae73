"""Endpoints whose answers contradicted a header: other endpoints of the pool are asked first."""

import time
from threading import Lock

_SECONDS = 600.0


class SetAsideEndpoints:
    """URLs that are avoided for a while. One per process, shared by its threads."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._lock = Lock()

    def add(self, url: str) -> None:
        with self._lock:
            self._until[url] = time.monotonic() + self._seconds

    def includes(self, url: str) -> bool:
        return self._until.get(url, 0.0) > time.monotonic()


SET_ASIDE = SetAsideEndpoints()
