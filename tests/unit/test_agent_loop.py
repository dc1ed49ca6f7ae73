"""The agent loop works while a pass finds work, then waits to be woken."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from trace_etl.dispatcher.loop import Loop


class Work:
    """Counts passes. Each pass takes one of the remaining pieces."""

    def __init__(self, pieces: int = 0) -> None:
        self.pieces = pieces
        self.passes = 0
        self.idle = asyncio.Event()
        self.fails = 0

    async def once(self) -> int:
        self.passes += 1
        if self.fails:
            self.fails -= 1
            raise ValueError("not now")
        if not self.pieces:
            self.idle.set()
            return 0
        self.pieces -= 1
        return 1


async def run_during(loop: Loop, steps: Callable[[], Awaitable[None]]) -> None:
    """Run the loop during the steps, then stop it."""
    stop = asyncio.Event()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(loop.run(stop))
        await steps()
        stop.set()


async def test_a_loop_works_until_nothing_is_left_and_then_waits() -> None:
    work = Work(5)

    async def steps() -> None:
        await work.idle.wait()
        for _ in range(50):
            await asyncio.sleep(0)

    await run_during(Loop("worker", work.once, idle=60), steps)
    assert (work.pieces, work.passes) == (0, 6)


async def test_a_wake_event_starts_a_pass_immediately() -> None:
    work, wake_event = Work(), asyncio.Event()

    async def steps() -> None:
        for _ in range(3):
            await work.idle.wait()
            work.idle.clear()
            work.pieces = 1
            wake_event.set()
        await work.idle.wait()

    await run_during(Loop("worker", work.once, idle=60, wake_event=wake_event), steps)
    assert work.pieces == 0


async def test_a_wake_event_during_a_pass_is_not_lost() -> None:
    wake_event, again, passes = asyncio.Event(), asyncio.Event(), []

    async def once() -> int:
        passes.append(1)
        if len(passes) == 1:
            wake_event.set()  # work arrives after the pass has checked for work
        else:
            again.set()
        return 0

    await run_during(Loop("worker", once, idle=60, wake_event=wake_event), again.wait)


async def test_a_loop_wakes_when_its_next_item_is_due() -> None:
    work = Work()

    async def due() -> timedelta:
        return timedelta(milliseconds=10)

    async def steps() -> None:
        for _ in range(3):
            await work.idle.wait()
            work.idle.clear()

    await run_during(Loop("worker", work.once, idle=60, next_due=due), steps)
    assert work.passes >= 3


async def test_without_a_wake_event_the_next_pass_starts_after_the_idle_interval() -> None:
    work = Work()

    async def steps() -> None:
        for _ in range(2):
            await work.idle.wait()
            work.idle.clear()

    await run_during(Loop("worker", work.once, idle=0.02), steps)
    assert work.passes >= 2


async def test_a_failed_pass_is_repeated() -> None:
    work = Work(1)
    work.fails = 2
    await run_during(Loop("worker", work.once, idle=60), work.idle.wait)
    assert (work.pieces, work.passes) == (0, 4)


async def test_a_sleeping_loop_stops_immediately() -> None:
    work = Work()
    before = asyncio.get_running_loop().time()
    await run_during(Loop("worker", work.once, idle=60), work.idle.wait)
    assert asyncio.get_running_loop().time() - before < 10
