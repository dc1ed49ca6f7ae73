"""Worker settings, read from the environment."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, field_validator
from pydantic_settings import SettingsConfigDict

from trace_etl.dag.chain.rules import Level, VerifyRules, check_exceptions
from trace_etl.dag.runtimes import BadRuntimes, Launcher, Runtime, Runtimes, load_runtimes
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.objects.settings import ObjectsSettings, explain_shared_keys
from trace_etl.secret_store import SecretStore, pick_variables

if TYPE_CHECKING:
    from trace_etl.spark.settings import SparkSettings


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
    launchers: ClassVar[tuple[Launcher, ...]]
    """The launchers of this kind of worker in the registry of runtimes."""
    runtimes_file: Path | None = None
    """Runtimes beside the shipped ones, and fields that change those."""
    runtimes: list[str] | None = None
    """The runtimes that workers serve; each worker serves those with its launchers. Default: all."""
    slots: PositiveInt | None = None
    """Tasks that this worker runs at once. Default: the slots of its runtimes."""
    drain_seconds: NonNegativeFloat = 4.0
    """How long running tasks may go on after a signal to stop. Then they are interrupted."""
    ready_file: Path | None = None
    log_level: str = "info"

    def make_unique_id(self) -> str:
        """Return the id of this process. A restarted worker must not appear to own earlier leases."""
        return f"{self.worker_id}:{socket.gethostname()}:{os.getpid()}"

    def served(self, launcher: Launcher | None = None) -> "ServedRuntimes":
        """Return the runtimes of this worker, by default with its own launchers. Raises BadRuntimes."""
        launchers = (launcher,) if launcher else self.launchers
        registry = load_runtimes(self.runtimes_file)
        names = registry.fitting(launchers) if self.runtimes is None else self.runtimes
        if unknown := sorted(set(names) - registry.entries.keys()):
            known = ", ".join(registry.entries)
            raise BadRuntimes(f"TRACE_RUNTIMES: unknown runtime {unknown[0]!r}; known: {known}")
        ours = [name for name in names if registry.entries[name].launcher in launchers]
        return ServedRuntimes.of(registry, ours, self.slots)


@dataclass(frozen=True)
class ServedRuntimes:
    """The runtimes of one worker, and how many of their tasks it runs."""

    entries: Mapping[str, Runtime]
    queues: Mapping[str, int]
    """The slots of each queue. Runtimes that share a queue share its slots."""
    slots: int

    @classmethod
    def of(cls, registry: Runtimes, names: Sequence[str], slots: int | None) -> "ServedRuntimes":
        entries = {name: registry.entries[name] for name in names}
        queues: dict[str, int] = {}
        for name, entry in entries.items():
            queue = registry.queue_of(name)
            queues[queue] = slots or max(entry.slots, queues.get(queue, 0))
        return cls(entries, queues, slots or max(1, sum(queues.values())))

    def idle_limit(self, runtime: str = "") -> float:
        """Return how many seconds a host with Spark stays after a task of this runtime.

        Runtimes without Spark have no limit of their own: the longest one counts.
        """
        limits = {
            name: float("inf") if entry.idle_timeout is None else float(entry.idle_timeout)
            for name, entry in self.entries.items()
            if entry.launcher == "spark"
        }
        return limits.get(runtime, max(limits.values(), default=float("inf")))


class AllowedPaths(BaseModel):
    """The paths to which a worker restricts itself."""

    read: list[str]
    write: list[str]


class HostSettings(ObjectsSettings):
    """Settings of an operator host: what operators on Spark need, and nothing else."""

    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True)

    spark_master: str = "local[2]"
    spark_memory: str = "1g"
    memory_limit: str | None = None
    """Memory for the host and its child processes. Sizes Spark's heap instead of spark_memory."""
    spark_conf: dict[str, str] = Field({})
    """Spark settings; they override the ones that the host chooses."""
    spark_dir: Path
    java_home: Path | None = None
    data_dsn: str | None = None
    programs_dir: Path | None = None
    """The executable files that the operator `native` can run."""
    rpc_pools: dict[str, list[str]] = Field({})
    """URLs by pool. `${secret:NAME}` in a URL is a secret of the job that reads from the pool."""
    rpc_rules: dict[str, PoolRules] = Field({})
    """By RPC pool: `verify` and `exceptions`, for jobs that do not set them."""
    slots: PositiveInt | None = None
    log_level: str = "info"
    host_fd: int = -1
    """The connection to the worker, which sets it."""

    def make_spark_settings(self) -> "SparkSettings":
        """Return the settings of the Spark side."""
        from trace_etl.spark.session.conf import heap_within
        from trace_etl.spark.settings import SparkSettings

        rules = self.rpc_rules.items()
        return SparkSettings(
            objects=self.open_objects(),
            master=self.spark_master,
            memory=heap_within(self.memory_limit, self.spark_master)
            if self.memory_limit
            else self.spark_memory,
            spark_conf=self.spark_conf,
            spark_dir=self.spark_dir,
            java_home=self.java_home,
            slots=self.slots or 1,
            rpc_pools={name: tuple(urls) for name, urls in self.rpc_pools.items()},
            rpc_rules={
                name: VerifyRules(pool.verify, tuple(pool.exceptions)) for name, pool in rules
            },
            data_dsn=self.data_dsn,
            programs_dir=self.programs_dir,
            shares_group=True,
        )


class WorkerSettings(ConnectionSettings, HostSettings):
    """Settings of the worker that runs operators on Spark, with those of its hosts."""

    launchers: ClassVar[tuple[Launcher, ...]] = ("spark", "process")
    metrics_port: int | None = None
    http_limits: ConnectionLimits = ConnectionLimits()
    secrets_dir: Path | None = None
    """Secrets of operators, one file each. Other organisations have a directory `orgs/{org_id}`."""
    org_id: UUID = UUID("00000000-0000-0000-0000-000000000001")
    """The organisation whose secrets are in `secrets_dir` itself, or in the environment."""
    credentials_role_arn: str | None = None
    """The setting of the Dispatcher. If it is set, operator hosts get credentials of S3 for each task, and not
    those of this worker."""
    host_paths: AllowedPaths | None = None
    """What hosts can read and write beside their own files; None: everything."""
    host_view: AllowedPaths | None = None
    """The same without Landlock, as root: hosts run as another account that sees these paths only."""
    allowed_paths: AllowedPaths | None = None
    """What this process can read and write after its start, as root; None: something else restricts it."""
    starter_fd: int | None = None
    """The connection to the process that starts hosts as another account. The worker sets it for itself."""

    @property
    def shared_keys_reason(self) -> str | None:
        """Why operators use the keys of this worker for S3. None: they do not."""
        return explain_shared_keys(self.objects_url, self.credentials_role_arn, self.spark_master)

    def open_secrets(self, environment: Mapping[str, str]) -> SecretStore:
        """Return the secrets that this worker passes to operators."""
        return SecretStore(self.secrets_dir, self.org_id, pick_variables(environment))


class FunctionSettings(ConnectionSettings):
    """Settings of the worker that runs user-defined functions."""

    launchers: ClassVar[tuple[Launcher, ...]] = ("sandbox",)
    query_url: str
    functions_dir: Path
    """Where bundles are unpacked while their functions run."""
    invoker_socket: Path | None = None
    """Where this worker takes invocations of Lambda functions. None: it takes none."""
    allowed_paths: AllowedPaths | None = None
    """What this process can read and write after its start; None: everything."""
    spawner_fd: int | None = None
    """The connection to the process that starts sandboxes. The worker sets it for itself."""
