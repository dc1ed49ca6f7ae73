"""`python -m trace_etl.scheduler`."""

import asyncio

import structlog

from trace_etl import logs
from trace_etl.http.server.listeners import Listener, Tls, run, serve, stop_on_signals
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.app import make_app
from trace_etl.scheduler.cron_trigger import CronTrigger
from trace_etl.scheduler.settings import SchedulerSettings

_log = structlog.stdlib.get_logger()


async def _run_scheduler(cfg: SchedulerSettings) -> None:
    stop = stop_on_signals()
    async with DispatcherApi(cfg.api_url, cfg.tls_ca, cfg.service_token_file) as api:
        trigger = CronTrigger(api, cfg.scheduler_refresh, cfg.scheduler_tolerance)
        async with asyncio.TaskGroup() as group:
            if cfg.scheduler_port and cfg.tls_cert and cfg.tls_key:
                app = make_app(api, trigger)
                listener = Listener(app, cfg.scheduler_host, cfg.scheduler_port)
                tls = Tls(cfg.tls_cert, cfg.tls_key)
                serving = serve([listener], tls=tls, stop=stop, limits=cfg.http_limits)
                group.create_task(serving)
            _log.info("scheduler_ready", port=cfg.scheduler_port)
            await trigger.run(stop)


def main() -> None:
    """Trigger cron sources until a signal stops the process."""
    cfg = SchedulerSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("scheduler", cfg.log_level)
    run(_run_scheduler(cfg))


if __name__ == "__main__":
    main()
