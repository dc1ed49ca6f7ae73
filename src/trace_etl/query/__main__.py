"""`python -m trace_etl.query`."""

import structlog

from trace_etl import logs
from trace_etl.http.server.listeners import Listener, Tls, run, serve, stop_on_signals
from trace_etl.process import keep_freed_memory
from trace_etl.query.service import open_app
from trace_etl.query.settings import QuerySettings

_log = structlog.stdlib.get_logger()


async def _serve(cfg: QuerySettings) -> None:
    stop = stop_on_signals()
    async with open_app(cfg) as app:
        _log.info("query_ready", port=cfg.query_port)
        listener = Listener(app, cfg.query_host, cfg.query_port)
        tls = Tls(cfg.tls_cert, cfg.tls_key)
        await serve([listener], tls=tls, stop=stop, limits=cfg.http_limits)


def main() -> None:
    """Serve queries until a signal stops the process."""
    cfg = QuerySettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("query", cfg.log_level)
    keep_freed_memory()
    run(_serve(cfg))


if __name__ == "__main__":
    main()
