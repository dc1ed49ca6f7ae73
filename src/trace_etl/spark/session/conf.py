"""Spark settings: fast small tasks, loopback only, no file access from a SELECT."""

import os
import re

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.scratch import Scratch
from trace_etl.spark.settings import SparkSettings

_SIZE = re.compile(r"(\d+)([mg])")
# Measured by `make bench ONLY=memory`.
_MIN_HEAP_MB, _OVERHEAD_MB, _PER_CORE_MB = 512, 768, 256


def spark_conf(settings: SparkSettings, scratch: Scratch) -> dict[str, str]:
    """Settings of an application that the worker starts itself."""
    return {
        "spark.app.name": "trace",
        "spark.master": settings.master,
        "spark.driver.memory": settings.memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps these in memory even without its web page.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch.directory / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The default manager starts several processes for every file that it writes.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
        **session_conf(settings),
        **(_make_local_conf(scratch) if is_local(settings.master) else {}),
        **settings.spark_conf,
    }


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Settings of one session, also allowed on a shared Spark Connect server."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores(settings.master)),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
        # Spark lists more paths than this in a separate job, which costs more than it saves here.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        # A SELECT may read only its inputs: no files by path, no ${env:…} in its text.
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.variable.substitute": "false",
    }


def is_local(master: str) -> bool:
    """Whether executors are threads of the worker's JVM."""
    return master.startswith("local")


def is_connect(master: str) -> bool:
    """Whether Spark is a remote Spark Connect server."""
    return master.startswith("sc://")


def cores(master: str) -> int:
    """The number of cores of a `local[n]` master; 2 for any other master."""
    inside = master.partition("[")[2].partition("]")[0].split(",")[0]
    if inside == "*":
        return os.cpu_count() or 2
    return int(inside) if inside.isdecimal() else 2


def heap_within(limit: str, master: str) -> str:
    """Return the JVM heap size that fits a memory limit for the whole worker.

    The rest is for the JVM's other memory, the worker, and the Python processes of every core.
    Raises SparkNotStarted if the limit is too small.
    """
    match = _SIZE.fullmatch(limit.lower())
    if match is None:
        raise SparkNotStarted(
            f"TRACE_MEMORY_LIMIT: {limit} is not a size; write it like 2g or 1792m"
        )
    megabytes = int(match[1]) * (1024 if match[2] == "g" else 1)
    overhead = _OVERHEAD_MB + _PER_CORE_MB * (cores(master) if is_local(master) else 0)
    if megabytes - overhead < _MIN_HEAP_MB:
        raise SparkNotStarted(
            f"TRACE_MEMORY_LIMIT: {limit} is too small; a worker with {master} needs at least "
            f"{overhead + _MIN_HEAP_MB}m"
        )
    return f"{megabytes - overhead}m"


def _make_local_conf(scratch: Scratch) -> dict[str, str]:
    """Return settings that a cluster sets itself: addresses, secrets and directories."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A SELECT that needs too much memory fails its own task. Spark would end the session of all tasks.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.authenticate": "true",  # other users of the machine can reach the loopback too
        "spark.local.dir": str(scratch.directory / "local"),
        # Over TCP each transfer to a Python worker waits 40 ms for a delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(scratch.sockets),
        "spark.python.daemon.module": "trace_etl.spark.session.python_daemon",
    }
