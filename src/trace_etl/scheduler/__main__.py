"""`python -m trace_etl.scheduler`."""

import structlog

from trace_etl import logs
from trace_etl.http.serve import run, stop_on_signals
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.cron_trigger import CronTrigger
from trace_etl.scheduler.settings import SchedulerSettings

_log = structlog.stdlib.get_logger()


async def _schedule(cfg: SchedulerSettings) -> None:
    stop = stop_on_signals()
    async with DispatcherApi(cfg.api_url, cfg.tls_ca, cfg.user_token_file) as api:
        _log.info("scheduler_ready")
        await CronTrigger(api, cfg.scheduler_refresh, cfg.scheduler_tolerance).run(stop)


def main() -> None:
    """Fire ticks until asked to stop."""
    cfg = SchedulerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("scheduler", cfg.log_level)
    run(_schedule(cfg))


if __name__ == "__main__":
    main()
