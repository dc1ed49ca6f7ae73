"""One warm Spark session per worker process, and a new one when its JVM has died."""

import importlib
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from trace_etl.pipeline import jvm
from trace_etl.pipeline.errors import SparkNotStarted
from trace_etl.pipeline.evm.source import EvmDataSource
from trace_etl.pipeline.settings import PipelineSettings

_LONGEST_SOCKET_DIRECTORY = 64
_IMPORTED_WHILE_THE_JVM_STARTS = ("pandas", "pyarrow.parquet", "pyspark.testing")


class WarmSession:
    """Holds the process's only Spark application. Safe to share between threads."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._jvm: jvm.Jvm | None = None
        self._spark: SparkSession | None = None
        self._sockets: Path | None = None

    def get(self) -> SparkSession:
        """The live session; starts or restarts Spark if need be. Raises SparkNotStarted."""
        with self._lock:
            if self._spark is None or not self.is_alive:
                self._discard()
                self._start()
            assert self._spark is not None
            return self._spark

    @property
    def is_alive(self) -> bool:
        """Whether there is a session with a live JVM behind it."""
        return self._jvm is not None and self._jvm.is_alive and self._spark is not None

    def restart(self) -> SparkSession:
        """Drop the JVM, whatever its state, and start another."""
        with self._lock:
            self._discard()
        return self.get()

    def close(self) -> None:
        """Stop Spark and its JVM."""
        with self._lock:
            if self.is_alive and self._spark is not None:
                self._spark.stop()
            self._discard()

    def _start(self) -> None:
        self._settings.spark_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sockets = _socket_directory(self._settings.spark_dir)
        with ThreadPoolExecutor(1) as pool:
            # PySpark imports pandas at the first call into the JVM; half of it is free now.
            imports = pool.submit(_import_ahead)
            self._jvm = jvm.start(
                self._settings.java_home,
                memory=self._settings.memory,
                scratch=self._settings.spark_dir,
            )
            imports.result()
        try:
            conf = spark_conf(self._settings, self._sockets)
            self._spark = _open_session(self._jvm.gateway, conf)
        except Exception as error:
            self._discard()
            raise SparkNotStarted(f"Spark did not start: {_first_line(error)}") from error

    def _discard(self) -> None:
        """Forget a session and end its JVM, so that the next start finds a clean process."""
        self._spark = None
        if self._jvm is not None:
            self._jvm.stop()
            self._jvm = None
            _forget_singletons()
        for directory in (self._settings.spark_dir / "local", self._sockets):
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def spark_conf(settings: PipelineSettings, sockets: Path) -> dict[str, str]:
    """What we ask of Spark: quick small tasks, loopback only, nothing a SELECT could abuse."""
    return {
        "spark.app.name": "trace",
        "spark.master": settings.master,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": settings.memory,
        "spark.local.dir": str(settings.spark_dir / "local"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        # Over TCP each hand-over to a Python worker waits 40 ms for a delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(settings.spark_dir / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores(settings.master)),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
        # More paths than this are listed by a Spark job of their own; ours are few and local.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        # A SELECT reads its inputs: no files by path, no ${env:…} in its text.
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.variable.substitute": "false",
        **settings.spark_conf,
    }


def _socket_directory(scratch: Path) -> Path:
    """A private place for sockets. Their paths are limited to 108 bytes, and a name takes 43."""
    near = scratch / "sockets"
    if len(str(near).encode()) <= _LONGEST_SOCKET_DIRECTORY:
        near.mkdir(mode=0o700, exist_ok=True)
        return near
    return Path(tempfile.mkdtemp(prefix="trace-"))


def cores(master: str) -> int:
    """The cores of a `local[n]` master; two for any other."""
    inside = master.partition("[")[2].partition("]")[0].split(",")[0]
    return int(inside) if inside.isdecimal() else 2


def _open_session(gateway: Any, conf: dict[str, str]) -> SparkSession:
    context = SparkContext(
        conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
    )
    # PySpark reads this from an environment variable; workers must be the Python that we are.
    context.pythonExec = sys.executable
    context.setLogLevel("WARN")
    spark = SparkSession(context)
    spark.dataSource.register(EvmDataSource)
    return spark


def _forget_singletons() -> None:
    """PySpark keeps one application per process; after a JVM's death it is ours to clear."""
    context = cast("Any", SparkContext)
    session = cast("Any", SparkSession)
    dead = context._active_spark_context
    if dead is not None:
        dead._jsc = None  # there is nobody left to tell
        dead.stop()
    context._active_spark_context = context._gateway = context._jvm = None
    session._instantiatedSession = session._activeSession = None


def _import_ahead() -> None:
    for name in _IMPORTED_WHILE_THE_JVM_STARTS:
        importlib.import_module(name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
