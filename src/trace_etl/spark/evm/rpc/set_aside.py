"""What this process learned about endpoints: which to avoid, and how many calls a batch may have."""

import time
from collections.abc import Sequence
from threading import Lock

_SECONDS = 600.0


class SetAsideEndpoints:
    """URLs that are avoided for a while. One per process, shared by its threads."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._lock = Lock()

    def add(self, url: str, seconds: float | None = None) -> None:
        """Avoid the URL for some time, or longer if it is set aside for longer already."""
        until = time.monotonic() + (self._seconds if seconds is None else seconds)
        with self._lock:
            self._until[url] = max(until, self._until.get(url, 0.0))

    def includes(self, url: str) -> bool:
        return self._until.get(url, 0.0) > time.monotonic()

    def order(self, urls: Sequence[str]) -> tuple[str, ...]:
        """The same URLs, with those that are avoided as the last ones."""
        return tuple(sorted(urls, key=self.includes))


SET_ASIDE = SetAsideEndpoints()


class BatchLimits:
    """The largest batch that each URL accepts, learned from refusals. One per process."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._limits: dict[str, tuple[int, float]] = {}
        self._lock = Lock()

    def lower(self, url: str, limit: int) -> None:
        """Record a smaller limit. It is forgotten after some time: the endpoint may have changed."""
        with self._lock:
            known = self.find(url)
            if known is None or limit < known:
                self._limits[url] = limit, time.monotonic() + self._seconds

    def find(self, url: str) -> int | None:
        """Return the limit; None if there is none or it is unknown."""
        limit, until = self._limits.get(url, (None, 0.0))
        return limit if until > time.monotonic() else None


BATCH_LIMITS = BatchLimits()
