"""Files that may change under a running process: keys, worker tokens."""

import os
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_AGAIN = 0.001  # seconds: thousands of calls a second ask
_TICK = 50_000_000  # nanoseconds


class Watched:
    """A file or a directory, read again when it has changed."""

    def __init__(self, path: Path, load: Callable[[], None]) -> None:
        self._path = path
        self._load = load
        self._seen: tuple[int, int] | None = None
        self._looked = 0.0

    def refresh(self) -> None:
        """Load what is new there; a change counts within a millisecond. Raises what `load` does."""
        now = time.monotonic()
        if now < self._looked + _LOOK_AGAIN:
            return
        self._looked = now
        found = os.stat(self._path)  # noqa: PTH116 - on the hot path
        mark = (found.st_mtime_ns, found.st_ino)
        if mark == self._seen:
            return
        # Within one tick of the file system's clock, a second change would not show.
        sure = time.time_ns() - found.st_mtime_ns > _TICK
        self._load()
        self._seen = mark if sure else None

    def refresh_now(self) -> None:
        """The same without the millisecond's patience: somebody knows what we do not."""
        self._looked = 0.0
        self.refresh()
