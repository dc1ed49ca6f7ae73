"""Report the ends of attempts: those that end while a call is under way share the next call."""

import threading
from dataclasses import dataclass, field
from typing import Protocol

from trace_etl.api.task import lifecycle as bodies
from trace_etl.http.clients.dispatcher_client import Refused
from trace_etl.model.errors import TraceError

_MAX_TASKS = 50
_MAX_OUTPUTS = 20
"""A completion with more outputs is sent alone: its body may be large."""


class CompletionClient(Protocol):
    """The calls of the Dispatcher's client that this module uses."""

    def complete(self, body: bodies.Complete, token: str, stop: threading.Event) -> object: ...

    def complete_many(
        self, completions: list[tuple[bodies.Complete, str]], stop: threading.Event
    ) -> list[Refused | None]: ...


@dataclass(eq=False)
class _Waiting:
    body: bodies.Complete
    token: str
    stop: threading.Event
    woken: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False
    error: TraceError | None = None


class Completions:
    """Sends completions. The first caller sends its own; then one of those that came meanwhile sends all."""

    def __init__(self, client: CompletionClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_sending = False

    def complete(self, body: bodies.Complete, token: str, stop: threading.Event) -> None:
        """Report the end of an attempt, with retries. Raises Refused, Unreachable."""
        mine = _Waiting(body, token, stop)
        with self._lock:
            self._waiting.append(mine)
            waits, self._is_sending = self._is_sending, True
        if waits:
            mine.woken.wait()
        if not mine.is_done:
            self._send_batch(mine)
        if mine.error is not None:
            raise mine.error

    def _send_batch(self, mine: _Waiting) -> None:
        with self._lock:
            batch = self._take(mine)
        try:
            self._send(batch)
        except TraceError as error:
            for item in batch:
                item.error = error
        finally:
            self._finish(batch)

    def _take(self, mine: _Waiting) -> list[_Waiting]:
        """Remove and return completions that fit into one call: this one, and those after it."""
        small = [item for item in self._waiting if _is_small(item) and item is not mine]
        batch = [mine, *(small[: _MAX_TASKS - 1] if _is_small(mine) else [])]
        self._waiting = [item for item in self._waiting if item not in batch]
        return batch

    def _send(self, batch: list[_Waiting]) -> None:
        if len(batch) == 1:
            self._client.complete(batch[0].body, batch[0].token, batch[0].stop)
            return
        completions = [(item.body, item.token) for item in batch]
        answers = self._client.complete_many(completions, batch[0].stop)
        for item, refusal in zip(batch, answers, strict=True):
            item.error = refusal

    def _finish(self, batch: list[_Waiting]) -> None:
        """Wake the callers of a batch, and one of the others to send the next batch."""
        for item in batch:
            item.is_done = True
            item.woken.set()
        with self._lock:
            self._is_sending = bool(self._waiting)
            if self._waiting:
                self._waiting[0].woken.set()


def _is_small(item: _Waiting) -> bool:
    return len(item.body.outputs) <= _MAX_OUTPUTS and not item.body.mapped_partitions
