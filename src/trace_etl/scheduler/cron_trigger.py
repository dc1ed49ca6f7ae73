"""Trigger cron sources when their ticks are due."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from trace_etl.model.errors import Conflict, Unavailable
from trace_etl.policy.retry import Backoff
from trace_etl.process import wait_for
from trace_etl.scheduler import ticks
from trace_etl.scheduler.api import CronJob, DispatcherApi
from trace_etl.scheduler.metrics import SchedulerMetrics

_RETRY = Backoff.of_seconds(0.5, 15, jitter=0.3)
_UNHEALTHY_FAILURES = 3
_log = structlog.stdlib.get_logger()


@dataclass
class CronTrigger:
    """Triggers the due ticks of all cron jobs."""

    api: DispatcherApi
    refresh: timedelta
    tolerance: timedelta
    """A tick that is later than this counts as missed."""
    metrics: SchedulerMetrics = field(default_factory=SchedulerMetrics)
    _last_ticks: dict[CronJob, datetime] = field(default_factory=dict[CronJob, datetime])
    """The last handled tick of each job."""
    _refreshed: datetime | None = None
    _failures: int = 0

    @property
    def is_healthy(self) -> bool:
        """Whether the last passes could reach the Dispatcher. If not, no ticks fire."""
        return self._failures < _UNHEALTHY_FAILURES

    async def run(self, stop: asyncio.Event) -> None:
        """Fire ticks until `stop`."""
        while not stop.is_set():
            now = datetime.now(UTC)
            try:
                pause = await self.fire_once(now) - datetime.now(UTC)
                self._failures = 0
            except Unavailable as error:
                self._failures += 1
                pause = _RETRY.delay(self._failures)
                self.metrics.failures.inc()
                _log.warning("dispatcher_unavailable", error=str(error), failures=self._failures)
            await wait_for(stop, pause.total_seconds())

    async def fire_once(self, now: datetime) -> datetime:
        """Fire all ticks due at `now`. Returns the time of the next call. Raises Unavailable."""
        if self._refreshed is None or now >= self._refreshed + self.refresh:
            await self._refresh_jobs(now)
            self._refreshed = now
        for job in self._last_ticks:
            await self._fire_due(job, now)
        return min([self._refreshed + self.refresh, *self._list_next_ticks(now)])

    async def _fire_due(self, job: CronJob, now: datetime) -> None:
        for tick in ticks.due(job.schedule, self._last_ticks[job], now, tolerance=self.tolerance):
            await self._fire(job, tick, now)
            self._last_ticks[job] = tick
        # Ticks that the missed-tick policy skips are not considered again.
        self._last_ticks[job] = max(self._last_ticks[job], now - self.tolerance)

    async def _refresh_jobs(self, now: datetime) -> None:
        last_ticks: dict[CronJob, datetime] = {}
        for job in await self.api.cron_jobs():
            try:
                last_ticks[job] = self._last_ticks.get(job) or await self._find_start(job, now)
            except Conflict as error:  # its DAG was undeployed since the list was read
                _log.info("job_removed", dag=job.dag, job=job.job, error=str(error))
        self._last_ticks = last_ticks
        self.metrics.jobs.set(len(last_ticks))

    async def _find_start(self, job: CronJob, now: datetime) -> datetime:
        """Return the time after which ticks are due: the last fired tick, or now for a new job.

        Raises Conflict if the job is no longer deployed.
        """
        last = await self.api.last_tick(job, now)
        # A tick of the current second is still due.
        return now - timedelta(seconds=1) if last is None else last

    async def _fire(self, job: CronJob, tick: datetime, now: datetime) -> None:
        try:
            created = await self.api.trigger(job, tick)
        except Conflict as error:
            self.metrics.refused.inc()
            _log.warning("tick_rejected", dag=job.dag, job=job.job, error=str(error))
            return
        self.metrics.fired(by_us=created, late=now - tick)
        _log.info("tick_fired", dag=job.dag, job=job.job, tick=tick.isoformat(), by_us=created)

    def _list_next_ticks(self, now: datetime) -> list[datetime]:
        next_ticks = [ticks.following(job.schedule, now) for job in self._last_ticks]
        return [tick for tick in next_ticks if tick is not None]
