"""Look after running attempts in one thread: heartbeats, time limits, output, the stop of the worker."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import structlog

CHECK_SECONDS = 0.5
_MAX_THREADS = 512
_log = structlog.stdlib.get_logger()


class Watched(Protocol):
    """An attempt that runs."""

    def check(self, now: float) -> float:
        """Do what is due. Returns when this is called again at the latest. Must not wait."""
        ...


class AttemptWatch:
    """Calls `check` of each attempt when something is due, and at least twice a second."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "attempt-call")
        self._attempts: dict[Watched, None] = {}
        self._changed = threading.Condition()
        self._wakes_at = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)
        self._thread.start()

    def add(self, attempt: Watched, check_at: float) -> None:
        """Check an attempt from now on, first at this time on the monotonic clock."""
        self._attempts[attempt] = None
        if check_at < self._wakes_at:
            self.wake()

    def remove(self, attempt: Watched) -> None:
        """Check an attempt no more."""
        self._attempts.pop(attempt, None)

    def wake(self) -> None:
        """Check all attempts now."""
        with self._changed:
            self._wakes_at = 0.0
            self._changed.notify()

    def do(self, work: Callable[[], None]) -> None:
        """Run in another thread what waits for an answer."""
        self._threads.submit(work).add_done_callback(_log_crash)

    def close(self) -> None:
        self._is_closed = True
        self.wake()
        self._thread.join()
        self._threads.shutdown()

    def _run(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._wakes_at = math.inf
            now = time.monotonic()
            wakes_at = now + CHECK_SECONDS if self._attempts else math.inf
            for attempt in list(self._attempts):
                wakes_at = min(wakes_at, _check(attempt, now))
            with self._changed:
                self._wakes_at = min(self._wakes_at, wakes_at)
                while (seconds := self._wakes_at - time.monotonic()) > 0:
                    self._changed.wait(None if seconds == math.inf else seconds)


def _check(attempt: Watched, now: float) -> float:
    try:
        return attempt.check(now)
    except Exception as error:  # the other attempts still need their heartbeats
        _log.error("check_crashed", error=repr(error))
        return now + CHECK_SECONDS


def _log_crash(future: Future[None]) -> None:
    if error := future.exception():
        _log.error("attempt_crashed", error=repr(error))
