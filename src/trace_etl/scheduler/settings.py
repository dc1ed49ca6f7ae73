"""Scheduler settings, read from the environment."""

from datetime import timedelta
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from trace_etl.http.server.connection_limits import ConnectionLimits


class SchedulerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    api_url: str
    tls_ca: Path
    service_token_file: Path
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()

    scheduler_host: str = "127.0.0.1"
    scheduler_port: int | None = None
    """Port of `/metrics`. Without a port and a certificate, the scheduler does not listen."""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    scheduler_refresh: timedelta = timedelta(seconds=30)
    scheduler_tolerance: timedelta = timedelta(seconds=90)
    """A tick that is later than this counts as missed; the `missed` policy of its source applies."""
