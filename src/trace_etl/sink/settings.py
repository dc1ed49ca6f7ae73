"""Sink settings, read from the environment."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trace_etl.api.task.buffers import MAX_BATCH_BYTES
from trace_etl.objects.settings import ObjectsSettings


class SinkSettings(ObjectsSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    dispatcher_url: str
    tls_ca: Path
    service_token_file: Path
    sink_id: str = "sink"
    queue_dsn: str
    data_dsn: str
    sweep_interval: timedelta = Field(timedelta(hours=1), gt=timedelta(0))
    """Time between two sweeps for retired tables."""
    max_batch_bytes: int = Field(MAX_BATCH_BYTES, ge=1)
    """Maximum size of a batch file."""
    ready_file: Path | None = None
    log_level: str = "info"
