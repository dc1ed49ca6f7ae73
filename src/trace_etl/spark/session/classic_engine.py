"""An application of our own: a JVM beside us, reached through Py4J."""

import importlib
import logging
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session import jvm
from trace_etl.spark.session.conf import is_local, spark_conf
from trace_etl.spark.session.engine import JobLabels, register_sources
from trace_etl.spark.session.failures import first_line
from trace_etl.spark.session.scratch import Scratch
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard import UNSAFE_FUNCTIONS

# PySpark imports pandas at the first call into the JVM; while the JVM starts it costs nothing.
_IMPORTED_WHILE_THE_JVM_STARTS = ("pandas", "pyarrow.parquet", "pyspark.testing")
_POOL = "spark.scheduler.pool"
_T = TypeVar("_T")


class ClassicEngine:
    """Starts and ends the JVM; knows what only a process with one can do."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._scratch: Scratch | None = None
        self.jvm: jvm.JvmProcess | None = None

    def start(self) -> SparkSession:
        settings = self._settings
        self._scratch = Scratch.make(settings.spark_dir)
        self.jvm = jvm.launch(
            settings.java_home,
            memory=settings.memory,
            scratch=self._scratch.directory,
            is_local=is_local(settings.master),
            is_brief=settings.is_brief,
            flags=settings.java_flags,
        )
        conf = spark_conf(settings, self._scratch)
        try:
            return _in_thread(_open_session, self.jvm, conf)
        except (Py4JError, PySparkException, ConnectionError, EOFError) as error:
            raise SparkNotStarted(f"Spark did not start: {first_line(error)}") from error

    def another(self, spark: SparkSession) -> SparkSession:
        return register_sources(spark.newSession())

    @property
    def is_alive(self) -> bool:
        process = self.jvm
        return process is not None and process.is_alive

    def holds(self, session: SparkSession) -> bool:
        return self.is_alive

    @contextmanager
    def working(self, session: SparkSession, jobs: JobLabels | None) -> Generator[None]:
        # Without an active session of its own a thread parses SQL by Spark's defaults, not ours.
        active = cast("Any", session)._jvm.org.apache.spark.sql.classic.SparkSession
        active.setActiveSession(cast("Any", session)._jsparkSession)
        try:
            with _marked(session.sparkContext, jobs) if jobs else _nothing():
                yield
        finally:
            active.clearActiveSession()

    def interrupt(self, session: SparkSession, tag: str) -> None:
        if self.is_alive:
            session.sparkContext.cancelJobsWithTag(tag)

    def plan(self, frame: DataFrame) -> None:
        cast("Any", frame)._jdf.queryExecution().toRdd().getNumPartitions()

    def kill(self) -> None:
        if self.jvm is not None:
            self.jvm.kill()

    def release(self, session: SparkSession) -> None:
        """Nothing to do: the JVM drops what nobody refers to."""

    def stop(self, sessions: list[SparkSession]) -> None:
        if self.jvm is not None:
            self.jvm.stop()  # its shutdown hooks stop the application
            self.jvm = None
            _forget_singletons()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None


@contextmanager
def _marked(context: SparkContext, jobs: JobLabels) -> Generator[None]:
    """Jobs of this thread can be stopped by their tag, and share cores fairly with other slots'."""
    context.addJobTag(jobs.tag)
    context.setInterruptOnCancel(True)
    context.setJobDescription(jobs.title)
    context.setLocalProperty(_POOL, jobs.pool)
    try:
        yield
    finally:
        context.removeJobTag(jobs.tag)
        context.setJobDescription(cast("str", None))
        context.setLocalProperty(_POOL, cast("str", None))


@contextmanager
def _nothing() -> Generator[None]:
    yield


def _in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """PySpark takes over SIGINT when it starts in the main thread; so it starts in another."""
    with ThreadPoolExecutor(1, "spark-start") as pool:
        return pool.submit(work, *args).result()


def _open_session(process: jvm.JvmProcess, conf: dict[str, str]) -> SparkSession:
    _import_ahead()
    silence_pyspark()
    gateway = process.connect()
    context = SparkContext(
        conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
    )
    # PySpark reads this from an environment variable; workers must be the Python that we are,
    # unless the cluster's machines have theirs elsewhere.
    context.pythonExec = conf.get("spark.pyspark.python", sys.executable)
    context.setLogLevel("WARN")
    _expect_hang_up(context)
    _drop_functions(gateway)
    return register_sources(SparkSession(context))


def _expect_hang_up(context: SparkContext) -> None:
    """A JVM that ends hangs up on PySpark's listener, which would print a traceback each time."""
    server = cast("Any", context)._accumulatorServer
    tell = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), EOFError):
            tell(request, address)

    server.handle_error = handle_error


def _drop_functions(gateway: Any) -> None:
    """Forget the functions by which a SELECT could call any Java method, or read any file."""
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst
    for name in UNSAFE_FUNCTIONS:
        catalyst.analysis.FunctionRegistry.builtin().dropFunction(catalyst.FunctionIdentifier(name))


def _forget_singletons() -> None:
    """PySpark keeps one application per process; after a JVM's death it is ours to clear."""
    context = cast("Any", SparkContext)
    session = cast("Any", SparkSession)
    dead = context._active_spark_context
    # Where a JVM calls back with the batches of a stream; it outlives the JVM otherwise.
    if context._gateway is not None and context._gateway.__dict__.get("_callback_server"):
        context._gateway.shutdown_callback_server()
    if dead is not None:
        dead._jsc = None  # there is nobody left to tell
        dead.stop()
    context._active_spark_context = context._gateway = context._jvm = None
    session._instantiatedSession = session._activeSession = None


def _import_ahead() -> None:
    for name in _IMPORTED_WHILE_THE_JVM_STARTS:
        importlib.import_module(name)


def silence_pyspark() -> None:
    """PySpark logs every error that it raises, with the query's text; we report them ourselves."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
