"""Query Service settings, read from the environment."""

from dataclasses import replace
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trace_etl.http.server.connection_limits import ConnectionLimits
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
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()

    pool_size: int = 4
    query_seconds: float = Field(60.0, gt=0, description="How long one query may run.")
    query_stream_seconds: float = Field(
        600.0,
        gt=0,
        description="How long one query may run and its client may take to read a streamed result.",
    )
    query_scan_seconds: float = Field(
        3600.0,
        gt=0,
        le=7 * 86_400,
        description="How long the signed URLs of a snapshot's files are valid, on a remote object store.",
    )
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

    query_audit_durable: bool = Field(
        True,
        description="Whether the record of a query is on disk before its answer. Otherwise a crash of"
        " Postgres state can lose the records of the last 0.6 s.",
    )

    dispatcher_url: str | None = None
    """The internal listener, for the public keys of task tokens. Without it, tasks cannot query."""
    tls_ca: Path | None = None
    task_query_seconds: float = Field(
        300.0, gt=0, le=300, description="How long one query of a task may run."
    )
    task_query_slots: int = Field(4, ge=1, description="Queries of tasks that run concurrently.")
    task_query_slots_per_task: int = Field(
        2, ge=1, description="Queries of one task that run concurrently."
    )
    task_query_queue_per_task: int = Field(
        8, ge=1, description="Queries of one task that may wait for a slot."
    )
    task_query_wait_seconds: float = Field(
        60.0, gt=0, description="How long a query of a task may wait for a slot."
    )
    task_query_result_bytes: int = Field(
        2**30, ge=1, description="Size of the Parquet object of one result."
    )

    def task_limits(self, rows: int | None) -> QueryLimits:
        """Return the limits of a task's query that may return this many rows; None: any number."""
        seconds = self.task_query_seconds
        cpu_seconds = seconds * self.query_threads
        return replace(self.limits(rows), seconds=seconds, cpu_seconds=cpu_seconds)

    @property
    def slots_per_user(self) -> int:
        return self.query_slots_per_user or max(1, self.query_slots - 1)

    def limits(self, rows: int | None) -> QueryLimits:
        """Return the limits of a query that may return this many rows; None: any number."""
        return QueryLimits(
            rows,
            self.query_memory,
            self.query_threads,
            seconds=self.query_seconds,
            cpu_seconds=self.query_cpu_seconds,
            table_bytes=self.query_table_bytes,
            reads_urls=self.objects_url.startswith("s3:"),
            ca_file=str(self.s3_ca_file) if self.s3_ca_file else None,
        )
