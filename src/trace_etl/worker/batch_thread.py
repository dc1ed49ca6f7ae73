"""Handle items in one thread: those that arrive while it works are handled together."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import structlog

_log = structlog.stdlib.get_logger()
T = TypeVar("T")


class BatchThread(Generic[T]):
    """Passes items to `handle`, at most `limit` at once. One item alone does not wait for others."""

    def __init__(self, name: str, handle: Callable[[list[T]], None], limit: int) -> None:
        self._handle = handle
        self._limit = limit
        self._waiting: SimpleQueue[T | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Add an item. It is handled soon."""
        self._waiting.put(item)

    def close(self) -> None:
        """Handle what waits, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            taken = self._take()
            batch = [item for item in taken if item is not None]
            is_open = len(batch) == len(taken)
            try:
                if batch:
                    self._handle(batch)
            except Exception as error:
                _log.error("batch_crashed", thread=self._thread.name, error=repr(error))

    def _take(self) -> list[T | None]:
        """Wait for an item, and return it with those that wait behind it."""
        taken = [self._waiting.get()]
        try:
            while len(taken) < self._limit and taken[-1] is not None:
                taken.append(self._waiting.get_nowait())
        except Empty:
            pass
        return taken
