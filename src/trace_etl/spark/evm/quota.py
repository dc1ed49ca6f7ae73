"""How many calls a second an endpoint may get from this process."""

import time
from functools import cache
from threading import Event, Lock


class RateLimit:
    """Hands out turns at an even pace. Shared by every connection to one endpoint."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        self._lock = Lock()

    def wait(self, calls: int, stop: Event) -> None:
        """Return when so many calls may go out, or when `stop` is set."""
        with self._lock:
            begin = max(time.monotonic(), self._free_at)
            self._free_at = begin + calls / self._per_second
        stop.wait(max(0.0, begin - time.monotonic()))


@cache
def shared_rate_limit(url: str, per_second: float) -> RateLimit:
    """The one quota of a URL in this process."""
    return RateLimit(per_second)
