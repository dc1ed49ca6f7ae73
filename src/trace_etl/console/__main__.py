"""`python -m trace_etl.console`."""

import structlog

from trace_etl import logs
from trace_etl.console.app import open_app
from trace_etl.console.settings import ConsoleSettings
from trace_etl.http.server.listeners import Listener, run, serve, stop_on_signals

_log = structlog.stdlib.get_logger()


async def _serve(cfg: ConsoleSettings) -> None:
    stop = stop_on_signals()
    async with open_app(cfg) as app:
        _log.info("console_ready", port=cfg.console_port)
        listener = Listener(app, cfg.console_host, cfg.console_port)
        await serve([listener], tls=cfg.tls, stop=stop, limits=cfg.http_limits)


def main() -> None:
    """Serve the web console until a signal stops the process."""
    cfg = ConsoleSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("console", cfg.log_level)
    run(_serve(cfg))


if __name__ == "__main__":
    main()
