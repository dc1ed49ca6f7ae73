"""Worker settings, read from the environment."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator
from pydantic_settings import SettingsConfigDict

from trace_etl.dag.chain.rules import Level, check_exceptions
from trace_etl.http.connection_limits import ConnectionLimits
from trace_etl.objects.settings import ObjectsSettings
from trace_etl.sandbox.limits import MIB, Limits


class PoolRules(BaseModel):
    """What is verified of the chain of an RPC pool."""

    model_config = ConfigDict(extra="forbid")

    verify: Level = "roots"
    exceptions: list[str] = []

    @field_validator("exceptions", mode="after")
    @classmethod
    def _check_exceptions(cls, exceptions: list[str]) -> list[str]:
        return check_exceptions(exceptions)


class ConnectionSettings(ObjectsSettings):
    """How a worker reaches the Dispatcher and its queue. Every kind of worker has these."""

    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    dispatcher_url: str
    tls_ca: Path
    worker_token_file: Path
    worker_id: str
    queue_dsn: str
    runtimes: list[str] = Field(["ecs_python", "ecs_platform"])
    slots: int = 2
    ready_file: Path | None = None
    log_level: str = "info"


class WorkerSettings(ConnectionSettings):
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
    http_limits: ConnectionLimits = ConnectionLimits()


class AllowedPaths(BaseModel):
    """The paths that a worker lets itself use."""

    read: list[str]
    write: list[str]


class FunctionSettings(ConnectionSettings):
    """Settings of the worker that runs user-defined functions."""

    query_url: str
    functions_dir: Path
    """Where bundles are unpacked while their functions run."""
    runtimes: list[str] = Field(["ecs_udf_python", "ecs_udf_rust"])
    allowed_paths: AllowedPaths | None = None
    """What this process can read and write after its start; None: everything."""
    spawner_fd: int | None = None
    """The connection to the process that starts sandboxes. The worker sets it for itself."""
    function_memory_mib: PositiveInt = 512
    function_processes: PositiveInt = 64
    function_temporary_mib: PositiveInt = 256

    def limits(self) -> Limits:
        """The limits of one function."""
        return Limits(
            memory_bytes=self.function_memory_mib * MIB,
            processes=self.function_processes,
            temporary_bytes=self.function_temporary_mib * MIB,
        )
