"""How every agent runs: work while there is some, then wait to be woken."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from trace_etl.dispatcher.loops.loop import Loop


class Work:
    """Counts passes; each takes one piece of what is left."""

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


async def during(loop: Loop, steps: Callable[[], Awaitable[None]]) -> None:
    """Run the loop while the steps are taken, then stop it."""
    stop = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(loop.run(stop))
        await steps()
        stop.set()


async def test_it_works_until_there_is_nothing_left_and_then_stands_still() -> None:
    work = Work(5)

    async def steps() -> None:
        await work.idle.wait()
        for _ in range(50):
            await asyncio.sleep(0)

    await during(Loop("worker", work.once, idle=60), steps)
    assert (work.pieces, work.passes) == (0, 6)


async def test_a_wake_event_starts_a_pass_at_once() -> None:
    work, wake_event = Work(), asyncio.Event()

    async def steps() -> None:
        for _ in range(3):
            await work.idle.wait()
            work.idle.clear()
            work.pieces = 1
            wake_event.set()
        await work.idle.wait()

    await during(Loop("worker", work.once, idle=60, wake_event=wake_event), steps)
    assert work.pieces == 0


async def test_a_wake_event_during_a_pass_is_not_lost() -> None:
    wake_event, again, looks = asyncio.Event(), asyncio.Event(), []

    async def once() -> int:
        looks.append(1)
        if len(looks) == 1:
            wake_event.set()  # something arrived after we had looked
        else:
            again.set()
        return 0

    await during(Loop("worker", once, idle=60, wake_event=wake_event), again.wait)


async def test_it_wakes_when_something_falls_due() -> None:
    work = Work()

    async def due() -> timedelta:
        return timedelta(milliseconds=10)

    async def steps() -> None:
        for _ in range(3):
            await work.idle.wait()
            work.idle.clear()

    await during(Loop("worker", work.once, idle=60, next_due=due), steps)
    assert work.passes >= 3


async def test_without_a_wake_event_the_next_pass_starts_after_the_idle_interval() -> None:
    work = Work()

    async def steps() -> None:
        for _ in range(2):
            await work.idle.wait()
            work.idle.clear()

    await during(Loop("worker", work.once, idle=0.02), steps)
    assert work.passes >= 2


async def test_a_failing_pass_is_tried_again() -> None:
    work = Work(1)
    work.fails = 2
    await during(Loop("worker", work.once, idle=60), work.idle.wait)
    assert (work.pieces, work.passes) == (0, 4)


async def test_it_stops_at_once_though_it_sleeps() -> None:
    work = Work()
    before = asyncio.get_running_loop().time()
    await during(Loop("worker", work.once, idle=60), work.idle.wait)
    assert asyncio.get_running_loop().time() - before < 10
