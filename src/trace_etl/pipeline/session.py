"""One warm Spark session per worker process, and a new one when its JVM has died."""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from trace_etl.pipeline import jvm
from trace_etl.pipeline.errors import SparkNotStarted
from trace_etl.pipeline.evm.source import EvmDataSource
from trace_etl.pipeline.scratch import Scratch
from trace_etl.pipeline.settings import PipelineSettings

_CALLS_INTO_JAVA = ("reflect", "java_method", "try_reflect")
# PySpark imports pandas at the first call into the JVM; while the JVM starts it costs nothing.
_IMPORTED_WHILE_THE_JVM_STARTS = ("pandas", "pyarrow.parquet", "pyspark.testing")
_T = TypeVar("_T")


class WarmSession:
    """Holds the process's only Spark application. Safe to share between threads."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._jvm: jvm.Jvm | None = None
        self._spark: SparkSession | None = None
        self._scratch: Scratch | None = None
        self._idle: list[SparkSession] = []

    def get(self) -> SparkSession:
        """The live session; starts or restarts Spark if need be. Raises SparkNotStarted."""
        with self._lock:
            if self._closing.is_set():
                raise SparkNotStarted("the worker is stopping")
            if not self.is_alive:
                self._discard()
                self._start()
            assert self._spark is not None
            return self._spark

    @contextmanager
    def lease(self, spark: SparkSession, views: Sequence[str]) -> Generator[SparkSession]:
        """A session of the same application for one task, in which it may make these views.

        Sessions are used again, because Spark's threads hold on to every one there ever was.
        """
        with self._lock:
            own = self._idle.pop() if self._idle and self._spark is spark else None
        own = own or _register_sources(spark.newSession())
        # Without an active session of its own a thread parses SQL by Spark's defaults, not ours.
        active = cast("Any", own)._jvm.org.apache.spark.sql.classic.SparkSession
        active.setActiveSession(cast("Any", own)._jsparkSession)
        try:
            yield own
        finally:
            active.clearActiveSession()
            for view in views:
                own.catalog.dropTempView(view)
            with self._lock:
                if self._spark is spark:
                    self._idle.append(own)

    def cancel_jobs(self, group: str) -> None:
        """Stop the jobs of a group, and those it may yet start."""
        spark = self._spark
        if spark is not None and self.is_alive:
            cast("Any", spark.sparkContext)._jsc.sc().cancelJobGroupAndFutureJobs(group)

    @property
    def is_alive(self) -> bool:
        """Whether there is a session with a live JVM behind it."""
        return self._jvm is not None and self._jvm.is_alive and self._spark is not None

    def abandon(self, spark: SparkSession) -> None:
        """Give up a session whose JVM does not answer, unless another took its place already."""
        with self._lock:
            if self._spark is spark:
                self._discard()

    def restart(self) -> SparkSession:
        """Drop the JVM, whatever its state, and start another."""
        with self._lock:
            self._discard()
        return self.get()

    def close(self) -> None:
        """Stop Spark and its JVM, also one that is still starting. There is no way back."""
        self._closing.set()
        if self._jvm is not None and self._spark is None:
            self._jvm.kill()
        with self._lock:
            self._discard()  # its shutdown hooks stop the application

    def _start(self) -> None:
        settings = self._settings
        if settings.master.startswith("sc://"):
            raise SparkNotStarted(
                "Spark Connect hides the JVM, by which a SELECT is kept to its inputs; give a "
                "local, spark://, k8s:// or yarn master"
            )
        self._scratch = Scratch.make(settings.spark_dir)
        self._jvm = jvm.launch(
            settings.java_home,
            memory=settings.memory,
            scratch=self._scratch.directory,
            is_local=is_local(settings.master),
        )
        conf = spark_conf(settings, self._scratch)
        try:
            self._spark = _in_thread(_open_session, self._jvm, conf)
        except SparkNotStarted:
            self._discard()
            raise
        except (Py4JError, PySparkException, ConnectionError, EOFError) as error:
            self._discard()
            raise SparkNotStarted(f"Spark did not start: {_first_line(error)}") from error

    def _discard(self) -> None:
        """Forget a session and end its JVM, so that the next start finds a clean process."""
        self._spark = None
        self._idle.clear()
        if self._jvm is not None:
            self._jvm.stop()
            self._jvm = None
            _forget_singletons()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None


def spark_conf(settings: PipelineSettings, scratch: Scratch) -> dict[str, str]:
    """What we ask of Spark: quick small tasks, loopback only, nothing a SELECT could abuse."""
    return {
        "spark.app.name": "trace",
        "spark.master": settings.master,
        "spark.driver.memory": settings.memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Kept in memory with or without a page to show them on.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch.directory / "warehouse"),
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
        **(_on_this_machine(scratch) if is_local(settings.master) else {}),
        **settings.spark_conf,
    }


def is_local(master: str) -> bool:
    """Whether executors are threads of our own JVM."""
    return master.startswith("local")


def _on_this_machine(scratch: Scratch) -> dict[str, str]:
    """What a cluster decides for itself: addresses, secrets, directories of its machines."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",  # other users of the machine can reach the loopback too
        "spark.local.dir": str(scratch.directory / "local"),
        # Over TCP each hand-over to a Python worker waits 40 ms for a delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(scratch.sockets),
    }


def cores(master: str) -> int:
    """The cores of a `local[n]` master; two for any other."""
    inside = master.partition("[")[2].partition("]")[0].split(",")[0]
    if inside == "*":
        return os.cpu_count() or 2
    return int(inside) if inside.isdecimal() else 2


def _in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """PySpark takes over SIGINT when it starts in the main thread; so it starts in another."""
    with ThreadPoolExecutor(1, "spark-start") as pool:
        return pool.submit(work, *args).result()


def _open_session(process: jvm.Jvm, conf: dict[str, str]) -> SparkSession:
    _import_ahead()
    _hush()
    gateway = process.connect()
    context = SparkContext(
        conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
    )
    # PySpark reads this from an environment variable; workers must be the Python that we are,
    # unless the cluster's machines have theirs elsewhere.
    context.pythonExec = conf.get("spark.pyspark.python", sys.executable)
    context.setLogLevel("WARN")
    _drop_functions(gateway)
    return _register_sources(SparkSession(context))


def _register_sources(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(EvmDataSource)
    return spark


def _drop_functions(gateway: Any) -> None:
    """Forget the functions by which a SELECT could call any Java method."""
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst
    for name in _CALLS_INTO_JAVA:
        catalyst.analysis.FunctionRegistry.builtin().dropFunction(catalyst.FunctionIdentifier(name))


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


def _hush() -> None:
    """PySpark logs every error that it raises, with the query's text; we report them ourselves."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
