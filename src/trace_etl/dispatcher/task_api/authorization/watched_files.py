"""Reload files that change while the process runs: keys, worker tokens."""

import os
import time
from collections.abc import Callable
from pathlib import Path

_CHECK_INTERVAL = 0.001  # seconds; there are thousands of requests per second
_MTIME_RESOLUTION = 50_000_000  # nanoseconds


class WatchedPath:
    """Call `load` again whenever a file or directory has changed."""

    def __init__(self, path: Path, load: Callable[[], None]) -> None:
        self._path = path
        self._load = load
        self._loaded_version: tuple[int, int] | None = None
        self._checked_at = 0.0

    def refresh(self) -> None:
        """Reload if the path changed. Checks at most once per millisecond. Raises the errors of `load`."""
        now = time.monotonic()
        if now < self._checked_at + _CHECK_INTERVAL:
            return
        self._checked_at = now
        stat = os.stat(self._path)  # noqa: PTH116 - on the hot path
        version = (stat.st_mtime_ns, stat.st_ino)
        if version == self._loaded_version:
            return
        # A second change within the resolution of mtime would not be noticed: reload again later.
        is_settled = time.time_ns() - stat.st_mtime_ns > _MTIME_RESOLUTION
        self._load()
        self._loaded_version = version if is_settled else None

    def refresh_now(self) -> None:
        """Reload now, bypassing the 1 ms throttle."""
        self._checked_at = 0.0
        self.refresh()
