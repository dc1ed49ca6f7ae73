"""Limit the calls per second that this process sends to an endpoint."""

import time
from functools import cache
from threading import Event, Lock


class RateLimit:
    """Spaces calls evenly. All connections to one endpoint share it."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        self._lock = Lock()

    def wait(self, calls: int, stop: Event) -> None:
        """Wait until this number of calls may be sent, or until `stop` is set."""
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + calls / self._per_second
        stop.wait(max(0.0, begin - time.monotonic()))


@cache
def shared_rate_limit(url: str, per_second: float) -> RateLimit:
    """Return the rate limit of a URL, one per process."""
    return RateLimit(per_second)
