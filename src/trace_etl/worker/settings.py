"""Worker settings, read from the environment."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_settings import SettingsConfigDict

from trace_etl.dag.chain.rules import Level, check_exceptions
from trace_etl.http.connection_limits import ConnectionLimits
from trace_etl.objects.settings import ObjectsSettings


class PoolRules(BaseModel):
    """What is verified of the chain of an RPC pool."""

    model_config = ConfigDict(extra="forbid")

    verify: Level = "roots"
    exceptions: list[str] = []

    @field_validator("exceptions", mode="after")
    @classmethod
    def _check_exceptions(cls, exceptions: list[str]) -> list[str]:
        return check_exceptions(exceptions)


class WorkerSettings(ObjectsSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    dispatcher_url: str
    tls_ca: Path
    worker_token_file: Path
    worker_id: str
    queue_dsn: str
    runtimes: list[str] = Field(["ecs_python", "ecs_platform"])
    slots: int = 2
    spark_master: str = "local[2]"
    spark_memory: str = "1g"
    memory_limit: str | None = None
    """Memory for the worker and its child processes. Sizes Spark's heap instead of spark_memory."""
    spark_conf: dict[str, str] = Field({})
    """Spark settings; they override the ones that the worker chooses."""
    spark_dir: Path
    java_home: Path | None = None
    data_dsn: str | None = None
    metrics_port: int | None = None
    rpc_pools: dict[str, list[str]] = Field({})
    rpc_rules: dict[str, PoolRules] = Field({})
    """By RPC pool: `verify` and `exceptions`, for jobs that do not set them."""
    ready_file: Path | None = None
    log_level: str = "info"
    http_limits: ConnectionLimits = ConnectionLimits()
