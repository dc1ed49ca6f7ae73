"""Worker settings, read from the environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator
from pydantic_settings import SettingsConfigDict

from trace_etl.dag.chain.rules import Level, check_exceptions
from trace_etl.dag.runtimes import BadRuntimes, Launcher, Runtime, Runtimes, load_runtimes
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


class ConnectionSettings(ObjectsSettings):
    """How a worker reaches the Dispatcher and its queue. Every kind of worker has these."""

    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    dispatcher_url: str
    tls_ca: Path
    worker_token_file: Path
    worker_id: str
    queue_dsn: str
    launcher: ClassVar[Launcher]
    """What this kind of worker is in the registry of runtimes."""
    runtimes_file: Path | None = None
    """Runtimes beside the shipped ones, and fields that change those."""
    runtimes: list[str] | None = None
    """The runtimes that workers serve, each those with its launcher. Default: all."""
    slots: PositiveInt | None = None
    """Tasks that this worker runs at once. Default: the slots of its runtimes."""
    ready_file: Path | None = None
    log_level: str = "info"

    def served(self) -> "ServedRuntimes":
        """Return the runtimes of this worker. Raises BadRuntimes."""
        registry = load_runtimes(self.runtimes_file)
        names = registry.fitting([self.launcher]) if self.runtimes is None else self.runtimes
        if unknown := sorted(set(names) - registry.entries.keys()):
            known = ", ".join(registry.entries)
            raise BadRuntimes(f"TRACE_RUNTIMES: unknown runtime {unknown[0]!r}; known: {known}")
        ours = [name for name in names if registry.entries[name].launcher == self.launcher]
        return ServedRuntimes.of(registry, ours, self.slots)


@dataclass(frozen=True)
class ServedRuntimes:
    """The runtimes of one worker, and how many of their tasks it runs."""

    entries: Mapping[str, Runtime]
    queues: Mapping[str, int]
    """The slots of each queue. Runtimes that share a queue share its slots."""
    slots: int
    idle_seconds: int | None
    """How long this worker stays warm without a task. None: always."""

    @classmethod
    def of(cls, registry: Runtimes, names: Sequence[str], slots: int | None) -> "ServedRuntimes":
        entries = {name: registry.entries[name] for name in names}
        queues: dict[str, int] = {}
        for name, entry in entries.items():
            queue = registry.queue_of(name)
            queues[queue] = slots or max(entry.slots, queues.get(queue, 0))
        idle = [entry.idle_timeout for entry in entries.values()]
        never = None in idle or not idle
        longest = None if never else max(seconds for seconds in idle if seconds is not None)
        return cls(entries, queues, slots or max(1, sum(queues.values())), longest)


class WorkerSettings(ConnectionSettings):
    launcher: ClassVar[Launcher] = "spark"
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

    launcher: ClassVar[Launcher] = "sandbox"
    query_url: str
    functions_dir: Path
    """Where bundles are unpacked while their functions run."""
    allowed_paths: AllowedPaths | None = None
    """What this process can read and write after its start; None: everything."""
    spawner_fd: int | None = None
    """The connection to the process that starts sandboxes. The worker sets it for itself."""
