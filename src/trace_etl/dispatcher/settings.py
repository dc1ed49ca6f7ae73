"""Dispatcher settings, read from the environment."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

from pydantic import PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict


class DispatcherSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    state_dsn: str
    queue_dsn: str
    api_host: str = "127.0.0.1"
    api_port: int
    internal_host: str = "127.0.0.1"
    internal_port: int
    tls_cert: Path
    tls_key: Path
    task_keys_dir: Path
    user_keys_dir: Path
    worker_tokens_file: Path
    objects_url: str
    """The object store, for example `file:///var/lib/trace/objects`."""
    org_id: UUID = UUID("00000000-0000-0000-0000-000000000001")
    log_level: str = "info"

    pool_size: int = 10
    object_bucket: str = "trace"
    token_grace: timedelta = timedelta(minutes=5)
    max_token_life: timedelta = timedelta(hours=24)
    retry_initial: timedelta = timedelta(seconds=30)
    retry_max: timedelta = timedelta(minutes=10)
    reaper_grace: timedelta = timedelta(seconds=20)  # workers retry heartbeats more often than this
    outbox_max_tries: int = 20
    outbox_hold: timedelta = timedelta(seconds=30)
    queue_timeout: timedelta = timedelta(seconds=5)
    history_retention: timedelta = timedelta(days=30)
    swap_every: timedelta = timedelta(seconds=0.5)
    source_restart_initial: timedelta = timedelta(seconds=1)
    source_restart_max: timedelta = timedelta(minutes=2)
    source_memory: timedelta = timedelta(minutes=10)
    secrets_dir: Path | None = None  # one file per secret; DAGs refer to it by file name
    webhook_window: timedelta = timedelta(minutes=5)
    changes_every: float = 0.25  # seconds between polls while a client follows the change stream
    changes_clients: int = 256
    pressure_bulk_delay: timedelta = timedelta(
        seconds=5
    )  # after pausing bulk work, before normal work
    backfill_window: int = 200  # queued and running tasks per backfill
    operator_caps: dict[str, PositiveInt] = {}  # concurrent attempts per operator, over all jobs
    reconcile_grace: timedelta = timedelta(
        seconds=30
    )  # time for the outbox to route an event first
