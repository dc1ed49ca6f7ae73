"""Report the ends of attempts: those that end while a call is under way share the next call."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from trace_etl.api.task import lifecycle as bodies
from trace_etl.http.clients.dispatcher_client import Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.worker.batch_thread import BatchThread

_log = structlog.stdlib.get_logger()
_MAX_TASKS = 100
_MAX_OUTPUTS = 20
"""A completion with more outputs is sent alone: its body may be large."""


class CompletionClient(Protocol):
    """The calls of the Dispatcher's client that this module uses."""

    def complete(self, body: bodies.Complete, token: str, stop: threading.Event) -> object: ...

    def complete_many(
        self, completions: list[tuple[bodies.Complete, str]], stop: threading.Event
    ) -> list[Refused | None]: ...


@dataclass(frozen=True, eq=False)
class CompletionReport:
    """The end of an attempt, to be reported with retries until `stop` is set."""

    body: bodies.Complete
    token: str
    stop: threading.Event
    answered: Callable[[TraceError | None], None]
    """Gets None, or why the Dispatcher did not accept it: Refused, Unreachable."""


class Completions:
    """Sends completions in one thread, and passes on their answers in it."""

    def __init__(self, client: CompletionClient) -> None:
        self._client = client
        self._waiting = BatchThread("completions", self._send, _MAX_TASKS)

    def add(self, completion: CompletionReport) -> None:
        """Report the end of an attempt soon."""
        self._waiting.put(completion)

    def close(self) -> None:
        """Report what waits, and stop."""
        self._waiting.close()

    def _send(self, waiting: list[CompletionReport]) -> None:
        small = [item for item in waiting if _is_small(item)]
        large = [[item] for item in waiting if not _is_small(item)]
        for batch in filter(None, [small, *large]):
            for item, error in zip(batch, self._call(batch), strict=True):
                item.answered(error)

    def _call(self, batch: list[CompletionReport]) -> list[TraceError | None]:
        first = batch[0]
        try:
            if len(batch) > 1:
                completions = [(item.body, item.token) for item in batch]
                return list(self._client.complete_many(completions, first.stop))
            self._client.complete(first.body, first.token, first.stop)
        except TraceError as error:
            return [error] * len(batch)
        except Exception as error:  # every attempt gets an answer, so that its slot becomes free
            _log.exception("completions_not_sent", count=len(batch))
            return [Unreachable(repr(error))] * len(batch)
        return [None]


def _is_small(item: CompletionReport) -> bool:
    return len(item.body.outputs) <= _MAX_OUTPUTS and not item.body.mapped_partitions
