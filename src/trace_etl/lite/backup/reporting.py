"""Progress of a backup or a restore."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with the name of a phase, the bytes done and the bytes in all."""


class Meter:
    """Counts the bytes of one phase."""

    def __init__(self, phase: str, total: int, report: Report) -> None:
        self._phase, self._total, self._report = phase, total, report
        self._done = 0

    def __call__(self, size: int) -> None:
        self._done += size
        self._report(self._phase, self._done, max(self._total, self._done))
