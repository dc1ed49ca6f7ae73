"""Dispatcher settings, read from the environment."""

import os
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.objects.settings import ObjectsSettings
from trace_etl.policy.retry import TASK_RETRY
from trace_etl.policy.storage_retention import StorageRetention
from trace_etl.secret_store import SecretStore, pick_variables


class DispatcherSettings(ObjectsSettings):
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
    service_keys_dir: Path
    """Public keys that verify the tokens of the sink and the scheduler."""
    certificate_keys_dir: Path | None = None
    """The keys that sign manifests. None: no manifests."""
    worker_tokens_file: Path
    org_id: UUID = UUID("00000000-0000-0000-0000-000000000001")
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()

    pool_size: int = 10
    credentials_role_arn: str | None = None
    """The role that `/v1/task/credentials` assumes, with a policy per attempt (needs the `aws` extra).
    Default: attempts use the Dispatcher's object endpoints."""
    max_object_bytes: PositiveInt = 1024**3  # of one object that an attempt sends to the Dispatcher
    max_attempt_bytes: PositiveInt = 16 * 1024**3
    """Of all objects that one attempt sends to one Dispatcher. A function must not fill the store."""
    sts_endpoint: str | None = None
    """The server of STS. Default: AWS."""
    token_grace: timedelta = timedelta(minutes=5)  # lifetime of a task token after the task timeout
    max_token_life: timedelta = timedelta(hours=24)
    retry_initial: timedelta = TASK_RETRY.initial
    retry_max: timedelta = TASK_RETRY.max_delay
    reaper_grace: timedelta = timedelta(seconds=20)
    """Minimum time that leases last after an outage; workers retry heartbeats more often than this."""
    outbox_max_tries: int = 20
    outbox_hold: timedelta = timedelta(seconds=30)  # lease of outbox rows that a replica performs
    queue_timeout: timedelta = timedelta(seconds=5)
    history_retention: timedelta = timedelta(days=30)
    audit_retention: timedelta = timedelta(days=365)  # retention of the record of queries
    sweep_storage: bool = True
    """Whether unused objects are deleted after their retention. They are shown in any case."""
    superseded_retention: timedelta = Field(timedelta(days=1), ge=timedelta(minutes=10))
    """Replaced partitions. Queries that started before the replacement must end within this time."""
    staging_retention: timedelta = timedelta(days=7)  # retention of outputs that were not committed
    scratch_retention: timedelta = timedelta(days=7)
    export_retention: timedelta = timedelta(days=30)
    batch_retention: timedelta = timedelta(
        days=1
    )  # retention of the artifacts of batches, after the sink wrote them
    listing_interval: timedelta = timedelta(hours=6)
    """Time between two listings of the same part of the object store, which find forgotten objects."""
    swap_every: timedelta = timedelta(seconds=0.5)  # between checks of generations being built
    source_restart_initial: timedelta = timedelta(seconds=1)
    source_restart_max: timedelta = timedelta(minutes=2)
    source_memory: timedelta = timedelta(minutes=10)
    """Time during which an ended attempt increases the next restart delay of its source."""
    invoker_socket: Path | None = None
    """The worker that runs Lambda functions. None: their tasks wait."""
    runtimes_file: Path | None = None
    """Runtimes beside the shipped ones, and fields that change those."""
    secrets_dir: Path | None = None  # one file per secret; DAGs refer to it by file name
    webhook_window: timedelta = timedelta(minutes=5)  # allowed age of a signature
    changes_every: float = 0.25  # seconds between polls while a client follows the change stream
    changes_clients: PositiveInt = 256  # maximum number of clients of the change stream
    changes_clients_per_user: PositiveInt = 32
    pressure_bulk_delay: timedelta = timedelta(seconds=5)
    """Time between pausing bulk tasks and pausing normal tasks, while a queue stays over its limit."""
    backfill_window: int = 200  # queued and running tasks per backfill
    operator_caps: dict[str, PositiveInt] = Field({})
    """Concurrent attempts per operator, over all jobs."""
    reconcile_grace: timedelta = timedelta(seconds=30)
    """Time for the outbox to route an event before the reconciler does."""

    def open_secrets(self) -> SecretStore:
        """Return the secrets of webhooks and notifications."""
        return SecretStore(self.secrets_dir, self.org_id, pick_variables(os.environ))

    def select_environment(self) -> dict[str, str]:
        """Return the variables that Python and libpq use, without the Dispatcher's credentials."""
        return {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "PYTHONPATH", "HOME") or name.startswith("PG")
        }

    @property
    def storage_retention(self) -> StorageRetention:
        return StorageRetention(
            retired=self.history_retention,
            superseded=self.superseded_retention,
            uncommitted=self.staging_retention,
            scratch=self.scratch_retention,
            exports=self.export_retention,
            batches=self.batch_retention,
        )
