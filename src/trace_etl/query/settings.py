"""Query Service settings, read from the environment."""

from pathlib import Path
from uuid import UUID

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trace_etl.http.connection_limits import ConnectionLimits
from trace_etl.objects.settings import ObjectsSettings
from trace_etl.query.requests import QueryLimits


class QuerySettings(ObjectsSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    state_dsn: str
    data_dsn: str | None = None
    """Postgres data. Without it, datasets whose rows are in its tables have no data."""
    query_host: str = "127.0.0.1"
    query_port: int
    tls_cert: Path
    tls_key: Path
    user_keys_dir: Path
    org_id: UUID = UUID("00000000-0000-0000-0000-000000000001")
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()

    pool_size: int = 4
    query_seconds: float = Field(60.0, gt=0, description="How long one query may run.")
    query_cpu_seconds: float = Field(
        120.0, gt=0, description="Processor time that one query may use on all its threads."
    )
    query_memory: str = Field("1GB", pattern=r"^[0-9]+(\.[0-9]+)?[kMGT]?B$")
    query_table_bytes: int = Field(
        2**30, ge=1, description="Bytes that one query may read from Postgres data."
    )
    query_threads: int = Field(2, ge=1)
    query_slots: int = Field(4, ge=1, description="Queries that run concurrently. Others wait.")
    query_slots_per_user: int | None = Field(
        None,
        ge=1,
        description="Queries of one user that run concurrently. Default: all slots but one.",
    )
    query_queue_per_user: int = Field(
        20, ge=1, description="Queries of one user that may wait for a slot."
    )
    query_wait_seconds: float = Field(
        10.0, gt=0, description="How long a query may wait for a slot."
    )

    @property
    def slots_per_user(self) -> int:
        return self.query_slots_per_user or max(1, self.query_slots - 1)

    def limits(self, rows: int) -> QueryLimits:
        """Return the limits of a query that may return so many rows."""
        return QueryLimits(
            rows,
            self.query_memory,
            self.query_threads,
            seconds=self.query_seconds,
            cpu_seconds=self.query_cpu_seconds,
            table_bytes=self.query_table_bytes,
        )
