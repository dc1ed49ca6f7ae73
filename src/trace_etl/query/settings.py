"""Query Service settings, read from the environment."""

from pathlib import Path
from uuid import UUID

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from trace_etl.objects.settings import ObjectsSettings


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

    pool_size: int = 4
    query_seconds: float = Field(60.0, gt=0)
    query_memory: str = Field("1GB", pattern=r"^[0-9]+(\.[0-9]+)?[kMGT]?B$")
    query_table_bytes: int = Field(
        2**30, ge=1, description="Bytes that one query may read from Postgres data."
    )
    query_threads: int = Field(2, ge=1)
    query_slots: int = Field(4, ge=1, description="Queries that run concurrently. Others wait.")
    query_wait_seconds: float = Field(
        10.0, gt=0, description="How long a query may wait for a slot."
    )
