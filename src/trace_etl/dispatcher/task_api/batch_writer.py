"""Group commit: write requests that arrive together in one transaction.

The commit costs more than the statement. While one batch is being written, new requests wait, and the
next batch takes all of them. A single request does not wait. A slow batch (for example, one that waits
for a lock) does not block later requests: the next batch starts concurrently.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, Literal, TypeVar, get_args

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.model.errors import Unavailable
from trace_etl.state.db.pool import (
    CONFLICT_ERRORS,
    CONNECTION_ERRORS,
    Conn,
    LockNotAvailable,
    ReusedConnections,
)

_log = structlog.stdlib.get_logger()
WriterName = Literal["claim", "claim_many", "heartbeat", "events", "complete"]
_MAX_PARALLEL = 4  # concurrent batches per writer
MAX_CONNECTIONS = _MAX_PARALLEL * len(get_args(WriterName))
"""Connections that all batch writers use together when all are busy."""
# When recent batches held several requests, wait this many turns of the event loop before writing,
# so that requests already on the wire join the batch.
_GATHER_TURNS = 4
# A batch of this many tasks is written without waiting. A larger batch saves little, and while Postgres
# writes the batch, the event loop can send the previous answers.
_FULL_WEIGHT = 16
# Answers to deliver per turn of the event loop when one answer is costly to build. Between turns the
# loop reads new requests and results of other batches.
PORTION = 10
_TRIES = 4
_PAUSE = 0.05
_OVERTAKE_AFTER = (
    0.005  # seconds after which the next batch starts although a batch is being written
)

T = TypeVar("T")
R = TypeVar("R")


class BatchWriter(Generic[T, R]):
    """Run `perform` over batches of submitted items, one statement and one commit per batch.

    `perform` returns one result or exception per item, in order. It must be safe to repeat: after a
    broken connection it is unknown whether the commit happened, so the same items are tried again.
    """

    def __init__(
        self,
        name: WriterName,
        connections: ReusedConnections,
        perform: Callable[[Conn, list[T]], Awaitable[list[R | Exception]]],
        *,
        largest: int = 200,
        parallel: int = _MAX_PARALLEL,
        weigh: Callable[[T], int] = lambda _: 1,
        portion: int | None = None,
    ) -> None:
        """`weigh` returns the number of tasks in an item; `portion` limits answers per loop turn."""
        self._name = name
        self._connections = connections
        self._perform = perform
        self._largest = largest
        self._parallel = parallel
        self._weigh = weigh
        self._portion = portion
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._weight = 0  # tasks in `_waiting`
        self._sizes = metrics.BATCH.labels(name)
        self._flushes: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._recent_size = 1
        self._started_at = 0.0
        self._is_writing_alone = False
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, item: T) -> R:
        """Submit an item and wait for its result. Raises the exception `perform` returned for it."""
        if self._is_draining or self._recent_size > 1:
            return await self.enter(item)
        return await self._write_alone(item)

    async def _write_alone(self, item: T) -> R:
        """Write a single item immediately, in the caller's asyncio task."""
        self._is_draining = self._is_writing_alone = True
        try:
            (result,) = await self._write([item])
        finally:
            self._is_writing_alone = False
            self._is_draining = bool(self._waiting)
            if self._waiting:
                self._start(self._drain())
        if isinstance(result, Exception):
            raise result
        return result

    def enter(self, item: T) -> "asyncio.Future[R]":
        """Submit an item and return a future of its result."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._weight += self._weigh(item)
        self._waiting.append((item, answer))
        if not self._is_draining:
            self._is_draining = True
            self._start(self._drain())
        elif self._timer is None:
            self._timer = loop.call_later(_OVERTAKE_AFTER, self._overtake_slow_batch)
        return answer

    def _start(self, flush: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(flush, name=f"batch_writer:{self._name}")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _overtake_slow_batch(self) -> None:
        """Start writing the waiting items although another batch is still being written."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        seconds_left = self._started_at + _OVERTAKE_AFTER - loop.time()
        if seconds_left <= 0 and len(self._flushes) + self._is_writing_alone < self._parallel:
            self._start(self._flush())
        self._timer = loop.call_later(
            max(seconds_left, _OVERTAKE_AFTER / 2), self._overtake_slow_batch
        )

    async def _drain(self) -> None:
        try:
            # This task starts in the next turn of the event loop, so items of the same turn are included.
            while self._waiting:
                for _ in range(_GATHER_TURNS if self._recent_size > 1 else 0):
                    if self._weight >= _FULL_WEIGHT:
                        break
                    await asyncio.sleep(0)
                await self._flush()
        finally:
            self._is_draining = False

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
        if not batch:
            return
        self._weight = sum(self._weigh(item) for item, _ in self._waiting)
        try:
            results = await self._write([item for item, _ in batch])
        except Exception as error:
            results = await self._write_one_by_one(batch, error)
        self._answer(batch, results)

    def _answer(
        self, batch: list[tuple[T, asyncio.Future[R]]], results: list[R | Exception]
    ) -> None:
        """Deliver results, at most `portion` tasks per turn of the event loop."""
        delivered, weight = 0, 0
        for (item, answer), result in zip(batch, results, strict=True):
            weight += self._weigh(item)
            if self._portion is not None and delivered and weight > self._portion:
                loop = asyncio.get_running_loop()
                loop.call_soon(self._answer, batch[delivered:], results[delivered:])
                return
            delivered += 1
            if answer.done():
                continue  # the caller was canceled
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    async def _write(self, items: list[T]) -> list[R | Exception]:
        self._started_at = asyncio.get_running_loop().time()
        self._sizes.observe(len(items))
        self._recent_size = max(len(items), self._recent_size - 1)
        return await self._attempt(items)

    async def _write_one_by_one(
        self, batch: list[tuple[T, asyncio.Future[R]]], error: Exception
    ) -> list[R | Exception]:
        """Retry items one by one, so that one bad item does not fail the whole batch."""
        if len(batch) == 1 or isinstance(error, Unavailable):
            return [error] * len(batch)
        _log.warning("batch_split", writer=self._name, size=len(batch), error=repr(error))
        results: list[R | Exception] = []
        for item, _ in batch:
            try:
                results += await self._attempt([item])
            except Exception as item_error:
                results.append(item_error)
        return results

    async def _attempt(self, items: list[T]) -> list[R | Exception]:
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._connections.use(lambda conn: self._perform(conn, items))
            except CONFLICT_ERRORS as error:
                if len(items) > 1:
                    raise  # the caller retries one by one, so only the conflicting item fails
                if not tries_left or isinstance(error, LockNotAvailable):
                    raise Unavailable("another request holds a lock on this task; retry") from error
                _log.warning("batch_retried", writer=self._name, error=repr(error))
            except CONNECTION_ERRORS as error:
                if not tries_left:
                    raise Unavailable("Postgres state is unavailable; retry the request") from error
                _log.warning("batch_retried", writer=self._name, error=repr(error))
                await asyncio.sleep(_PAUSE * (_TRIES - tries_left))
        raise AssertionError("unreachable")
