"""Group commit: requests that arrive together are written together.

Commits, not statements, are what Postgres makes us wait for. While one batch is being written, the
requests behind it gather, and the next batch takes them all; a lone request waits for nobody. A
batch that is held up (by a lock, say) is not waited for: others pass it by.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, Literal, TypeVar, get_args

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.model.errors import Unavailable
from trace_etl.state.db.pool import BROKEN, CLASHED, Conn, KeptConnections, LockNotAvailable

_log = structlog.stdlib.get_logger()
WriterName = Literal["claim", "claim_many", "heartbeat", "events", "complete"]
_PARALLEL = 4  # batches of one writer that may be under way
MOST_CONNECTIONS = _PARALLEL * len(get_args(WriterName))
"""Connections that all batch writers use together when all are busy."""
# Turns of the event loop before a batch goes, where several came lately: who has sent already, or
# was just answered and sends again, comes along.
_TURNS = 4
# Tasks: a batch of as many goes without waiting for more. What they save together is small by then,
# and while Postgres has them, those before them can be answered.
_ENOUGH = 16
# Tasks whose answers are given in one turn of the loop, where an answer takes long to make. Between
# turns it hears what came meanwhile: who got the first answers and asks again, and what Postgres
# made of another batch.
PORTION = 10
_TRIES = 4
_PAUSE = 0.05
_PATIENCE = 0.005  # seconds that a batch may take before the next one goes beside it

T = TypeVar("T")
R = TypeVar("R")


class BatchWriter(Generic[T, R]):
    """Runs `perform` over batches of submitted items, one statement and one commit a batch.

    `perform` must answer each item in order, with a result or with the exception that the
    submitter shall see, and must be safe to repeat: a broken connection leaves open whether the
    commit happened, so the same items are tried again.
    """

    def __init__(
        self,
        name: WriterName,
        connections: KeptConnections,
        perform: Callable[[Conn, list[T]], Awaitable[list[R | Exception]]],
        *,
        largest: int = 200,
        parallel: int = _PARALLEL,
        weigh: Callable[[T], int] = lambda _: 1,
        portion: int | None = None,
    ) -> None:
        """`weigh` says how many tasks an item is about, `portion` how many to answer in a turn."""
        self._name = name
        self._connections = connections
        self._perform = perform
        self._largest = largest
        self._parallel = parallel
        self._weigh = weigh
        self._portion = portion
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._weight = 0  # of those who wait
        self._sizes = metrics.BATCH.labels(name)
        self._flushes: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._crowd = 1
        self._began = 0.0
        self._is_one_alone = False
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self, item: T) -> R:
        """Hand an item in and wait for its own answer. Raises what `perform` answered for it."""
        if self._is_draining or self._crowd > 1:
            return await self.enter(item)
        return await self._go_alone(item)

    async def _go_alone(self, item: T) -> R:
        """Nobody is here, and nobody came lately: at once, in the caller's own task."""
        self._is_draining = self._is_one_alone = True
        try:
            (result,) = await self._write([item])
        finally:
            self._is_one_alone = False
            self._is_draining = bool(self._waiting)
            if self._waiting:
                self._start(self._drain())
        if isinstance(result, Exception):
            raise result
        return result

    def enter(self, item: T) -> "asyncio.Future[R]":
        """Hand an item in; its answer comes later."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._weight += self._weigh(item)
        self._waiting.append((item, answer))
        if not self._is_draining:
            self._is_draining = True
            self._start(self._drain())
        elif self._timer is None:
            self._timer = loop.call_later(_PATIENCE, self._pass_by)
        return answer

    def _start(self, flush: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(flush, name=f"batch_writer:{self._name}")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _pass_by(self) -> None:
        """Let those who wait go beside a batch that is held up."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        left = self._began + _PATIENCE - loop.time()
        if left <= 0 and len(self._flushes) + self._is_one_alone < self._parallel:
            self._start(self._flush())
        self._timer = loop.call_later(max(left, _PATIENCE / 2), self._pass_by)

    async def _drain(self) -> None:
        try:
            # This begins a turn of the event loop later: what arrived in the same one is there.
            while self._waiting:
                for _ in range(_TURNS if self._crowd > 1 else 0):
                    if self._weight >= _ENOUGH:
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
            results = await self._one_by_one(batch, error)
        self._answer(batch, results)

    def _answer(
        self, batch: list[tuple[T, asyncio.Future[R]]], results: list[R | Exception]
    ) -> None:
        """Give the answers, as many as fit into this turn of the loop, and the others after it."""
        given, weight = 0, 0
        for (item, answer), result in zip(batch, results, strict=True):
            weight += self._weigh(item)
            if self._portion is not None and given and weight > self._portion:
                loop = asyncio.get_running_loop()
                loop.call_soon(self._answer, batch[given:], results[given:])
                return
            given += 1
            if answer.done():
                continue  # the caller went away
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    async def _write(self, items: list[T]) -> list[R | Exception]:
        self._began = asyncio.get_running_loop().time()
        self._sizes.observe(len(items))
        self._crowd = max(len(items), self._crowd - 1)
        return await self._attempt(items)

    async def _one_by_one(
        self, batch: list[tuple[T, asyncio.Future[R]]], error: Exception
    ) -> list[R | Exception]:
        """One bad item must not spoil the others of its batch."""
        if len(batch) == 1 or isinstance(error, Unavailable):
            return [error] * len(batch)
        _log.warning("batch_split", writer=self._name, size=len(batch), error=repr(error))
        results: list[R | Exception] = []
        for item, _ in batch:
            try:
                results += await self._attempt([item])
            except Exception as own:
                results.append(own)
        return results

    async def _attempt(self, items: list[T]) -> list[R | Exception]:
        for left in reversed(range(_TRIES)):
            try:
                return await self._connections.use(lambda conn: self._perform(conn, items))
            except CLASHED as error:
                if len(items) > 1:
                    raise  # to be tried one by one: only whoever clashes shall suffer
                if not left or isinstance(error, LockNotAvailable):
                    raise Unavailable("somebody else holds this task; try again") from error
                _log.warning("batch_retried", writer=self._name, error=repr(error))
            except BROKEN as error:
                if not left:
                    raise Unavailable("Postgres state does not answer; try again") from error
                _log.warning("batch_retried", writer=self._name, error=repr(error))
                await asyncio.sleep(_PAUSE * (_TRIES - left))
        raise AssertionError("unreachable")
