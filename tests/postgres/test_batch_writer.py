"""Group commit: concurrent requests share a transaction, and one failure does not affect the others."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from trace_etl.dispatcher.task_api import batch_writer
from trace_etl.dispatcher.task_api.batch_writer import BatchWriter
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.model.errors import Unavailable
from trace_etl.state.db.pool import Conn, ReusedConnections, make_pool

_DOUBLED = (
    "SELECT n * 2 FROM unnest(%(numbers)s::int[]) WITH ORDINALITY AS t (n, place) ORDER BY place"
)
_HELD = 13
_KILLED = 17


class Doubling:
    """Double numbers in Postgres, one statement per batch, and record the batches."""

    def __init__(self, kept: ReusedConnections) -> None:
        self.batches: list[list[int]] = []
        self.holding = asyncio.Event()
        self.release = asyncio.Event()
        self.kept = kept
        self.writer = BatchWriter("claim", kept, self._perform)

    async def _perform(self, conn: Conn, numbers: list[int]) -> list[int | Exception]:
        self.batches.append(numbers)
        if _HELD in numbers:
            self.holding.set()
            await self.release.wait()
        if _KILLED in numbers:
            await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        if any(n < 0 for n in numbers):
            await conn.execute("SELECT 1 / 0")
        rows = await (await conn.execute(_DOUBLED, {"numbers": numbers})).fetchall()
        return [KeyError(n) if n == 0 else row[0] for n, row in zip(numbers, rows, strict=True)]


@pytest.fixture
async def doubling(dsns: Dsns, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Doubling]:
    monkeypatch.setattr(batch_writer, "_OVERTAKE_AFTER", 60)  # a slow machine is not what is tested
    async with make_pool(dsns.state, size=6, hot=True) as pool:
        kept = ReusedConnections(pool)
        yield Doubling(kept)
        await kept.close()


async def submit_together(doubling: Doubling, *numbers: int) -> list[int | BaseException]:
    submitted = [doubling.writer.submit(n) for n in numbers]
    return await asyncio.gather(*submitted, return_exceptions=True)


async def test_the_first_request_is_written_immediately_and_later_ones_as_a_batch(
    doubling: Doubling,
) -> None:
    assert await submit_together(doubling, 3, 1, 2) == [6, 2, 4]
    assert doubling.batches == [[3], [1, 2]]


async def test_concurrent_requests_are_written_in_one_batch_and_answered_in_order(
    doubling: Doubling,
) -> None:
    await submit_together(doubling, 0, 0, 0)
    assert await submit_together(doubling, 3, 1, 2) == [6, 2, 4]
    assert doubling.batches[2:] == [[3, 1, 2]]


async def test_callers_that_submit_again_immediately_share_a_batch(doubling: Doubling) -> None:
    async def caller(n: int) -> None:
        for _ in range(5):
            assert await doubling.writer.submit(n) == 2 * n

    await asyncio.gather(*(caller(n) for n in range(1, 9)))
    assert [len(batch) for batch in doubling.batches] == [1, 8, 8, 8, 8, 7]


@pytest.mark.parametrize(
    ("before", "batches"), [([0, 1, 2], [[3, 4]]), ([1], [[3], [4]])], ids=["a_crowd", "alone"]
)
async def test_a_batch_waits_briefly_for_more_requests_after_a_large_batch(
    doubling: Doubling, before: list[int], batches: list[list[int]]
) -> None:
    await submit_together(doubling, *before)
    early = asyncio.ensure_future(doubling.writer.submit(3))
    for _ in range(3):  # iterations of the event loop
        await asyncio.sleep(0)
    assert await asyncio.gather(early, doubling.writer.submit(4)) == [6, 8]
    assert doubling.batches[-len(batches) :] == batches
    assert [n for batch in doubling.batches for n in batch] == [*before, 3, 4]


async def test_a_large_batch_is_written_without_waiting_for_more_requests(
    doubling: Doubling,
) -> None:
    crowd = [*range(101, 117)]
    await submit_together(doubling, 0, *crowd)
    early = [asyncio.ensure_future(doubling.writer.submit(n)) for n in crowd]
    await asyncio.sleep(0)  # the requests are submitted
    await asyncio.sleep(0)  # the batch starts
    late = doubling.writer.submit(1)
    assert await asyncio.gather(*early, late) == [2 * n for n in [*crowd, 1]]
    assert doubling.batches[2:] == [crowd, [1]]


async def test_expensive_answers_are_delivered_in_portions(doubling: Doubling) -> None:
    async def perform(_: Conn, weights: list[int]) -> list[int | Exception]:
        return list(weights)

    heavy = BatchWriter("claim", doubling.kept, perform, weigh=lambda weight: weight, portion=10)
    turn, seen = 0, dict[int, list[int]]()

    async def caller(weight: int) -> None:
        answer = await heavy.submit(weight)
        seen.setdefault(turn, []).append(answer)

    calls = asyncio.gather(*(caller(weight) for weight in (1, 4, 6, 7, 30, 10, 2)))
    while not calls.done():
        turn += 1
        await asyncio.sleep(0)
    assert [*seen.values()] == [[1], [4, 6], [7], [30], [10], [2]]


async def test_an_exception_answers_only_the_request_that_caused_it(doubling: Doubling) -> None:
    one, none, two = await submit_together(doubling, 1, 0, 2)
    assert (one, two) == (2, 4) and isinstance(none, KeyError)


async def test_a_request_that_breaks_its_batch_fails_alone(doubling: Doubling) -> None:
    one, bad, two = await submit_together(doubling, 1, -1, 2)
    assert (one, two) == (2, 4) and "division by zero" in str(bad)
    assert doubling.batches == [[1], [-1, 2], [-1], [2]]


async def test_other_requests_overtake_a_blocked_batch(
    doubling: Doubling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "_OVERTAKE_AFTER", 0.005)
    held = asyncio.ensure_future(doubling.writer.submit(_HELD))
    async with asyncio.timeout(20):
        await doubling.holding.wait()
        assert await submit_together(doubling, 1, 2) == [2, 4]
        assert not held.done()
        doubling.release.set()
        assert await held == 2 * _HELD


async def test_a_canceled_request_does_not_affect_the_others(doubling: Doubling) -> None:
    canceled = asyncio.ensure_future(doubling.writer.submit(_HELD))
    other = asyncio.ensure_future(doubling.writer.submit(1))
    await doubling.holding.wait()
    canceled.cancel()
    doubling.release.set()
    assert await other == 2
    with pytest.raises(asyncio.CancelledError):
        await canceled
    assert await submit_together(doubling, 5) == [10]


async def test_a_broken_connection_is_retried_and_then_reported(doubling: Doubling) -> None:
    (answer,) = await submit_together(doubling, _KILLED)
    assert isinstance(answer, Unavailable)
    assert doubling.batches == [[_KILLED]] * 4
    assert await submit_together(doubling, 4) == [8]
