"""The loop that runs every background agent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.policy.retry import Backoff
from trace_etl.process import wait_for

_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 10)
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Loop:
    """Call `once` until it returns 0. Then sleep until woken or due, at most `idle` seconds."""

    name: str
    once: Callable[[], Awaitable[int]]
    idle: float
    wake_event: asyncio.Event | None = None
    next_due: Callable[[], Awaitable[timedelta | None]] | None = None
    min_pause: float = 0.0
    """Minimum seconds between passes, even if the loop is woken more often."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. A failed pass is logged and retried with growing delays."""
        failures = 0
        while not stop.is_set():
            if self.wake_event is not None:
                self.wake_event.clear()  # cleared before the pass, so that an event during the pass counts
            try:
                with metrics.LOOP.labels(self.name).time():
                    handled = await self.once()
                pause = 0.0 if handled else await self._compute_pause()
                failures = 0
            except Exception as error:
                failures += 1
                metrics.LOOP_FAILURES.labels(self.name).inc()
                pause = _FAILURE_BACKOFF.seconds(failures)
                _log.warning("loop_failed", loop=self.name, failures=failures, error=repr(error))
            if self.min_pause:
                await wait_for(stop, self.min_pause)
            if pause:
                await self._sleep(pause, stop)

    async def _compute_pause(self) -> float:
        due = await self.next_due() if self.next_due else None
        return self.idle if due is None else min(self.idle, max(0.005, due.total_seconds()))

    async def _sleep(self, seconds: float, stop: asyncio.Event) -> None:
        waits = [asyncio.create_task(stop.wait())]
        if self.wake_event is not None:
            waits.append(asyncio.create_task(self.wake_event.wait()))
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
