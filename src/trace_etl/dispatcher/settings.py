"""Everything the Dispatcher is told from outside."""

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
    objects_root: Path
    org_id: UUID = UUID("00000000-0000-0000-0000-000000000001")
    log_level: str = "info"

    pool_size: int = 10
    object_scheme: str = "file"
    object_bucket: str = "trace"
    token_grace: timedelta = timedelta(minutes=5)
    token_life_most: timedelta = timedelta(hours=24)
    retry_first: timedelta = timedelta(seconds=30)
    retry_most: timedelta = timedelta(minutes=10)
    reaper_grace: timedelta = timedelta(seconds=20)  # a worker insists at least that often
    outbox_max_tries: int = 20
    outbox_hold: timedelta = timedelta(seconds=30)
    queue_patience: timedelta = timedelta(seconds=5)
    history_kept: timedelta = timedelta(days=30)
    swap_every: timedelta = timedelta(seconds=0.5)
    source_restart_first: timedelta = timedelta(seconds=1)
    source_restart_most: timedelta = timedelta(minutes=2)
    source_memory: timedelta = timedelta(minutes=10)
    secrets_dir: Path | None = None  # one file a secret that DAGs refer to by name
    webhook_window: timedelta = timedelta(minutes=5)
    changes_every: float = 0.25  # seconds between looks for news that somebody waits for
    changes_clients: int = 256
    pressure_patience: timedelta = timedelta(seconds=5)  # with bulk shed, before normal work is
    backfill_window: int = 200  # tasks of one backfill at once
    operator_caps: dict[str, PositiveInt] = {}  # attempts at once by operator, over all jobs
    reconcile_grace: timedelta = timedelta(seconds=30)  # the outbox has the first go
