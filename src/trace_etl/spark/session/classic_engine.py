"""Spark in a JVM that the worker starts itself and calls through Py4J."""

import importlib
import logging
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
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
from trace_etl.spark.session.executor_output import PROPERTY, follow_file
from trace_etl.spark.session.failures import first_line
from trace_etl.spark.session.scratch import Scratch
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard.allowed import UNSAFE_FUNCTIONS
from trace_etl.spark.sql_guard.plan_tree import SqlParser

# PySpark imports these at the first call into the JVM. Importing them during the JVM's start is free.
_EARLY_IMPORTS = ("pandas", "pyarrow.parquet", "pyspark.testing")
_POOL = "spark.scheduler.pool"
_T = TypeVar("_T")


class ClassicEngine:
    """Starts and stops the JVM, and makes the calls that need direct access to it."""

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
            shares_group=settings.shares_group,
            flags=settings.java_flags,
        )
        conf = spark_conf(settings, self._scratch)
        try:
            return _run_in_thread(_open_session, self.jvm, conf)
        except (Py4JError, PySparkException, ConnectionError, EOFError) as error:
            raise SparkNotStarted(
                f"Spark did not start: {first_line(error)}; see {self.jvm.log}"
            ) from error

    def new_session(self, spark: SparkSession) -> SparkSession:
        return register_sources(spark.newSession())

    @property
    def is_alive(self) -> bool:
        process = self.jvm
        return process is not None and process.is_alive

    def is_usable(self, session: SparkSession) -> bool:
        return self.is_alive

    @contextmanager
    def use_session(self, session: SparkSession, jobs: JobLabels | None) -> Generator[None]:
        # Without an active session, a thread parses SQL with Spark's default settings.
        active = cast("Any", session)._jvm.org.apache.spark.sql.classic.SparkSession
        active.setActiveSession(cast("Any", session)._jsparkSession)
        try:
            with self._label_jobs(session.sparkContext, jobs) if jobs else nullcontext():
                yield
        finally:
            active.clearActiveSession()

    @contextmanager
    def _label_jobs(self, context: SparkContext, jobs: JobLabels) -> Generator[None]:
        """Label the jobs of this thread. Their output is kept if executors can reach the scratch files."""
        assert self._scratch is not None  # Spark has started
        file = self._scratch.directory / f"output-{jobs.tag}"
        with (
            _label_jobs(context, jobs),
            follow_file(file, jobs.log),
            _set_property(context, PROPERTY, str(file)),
        ):
            yield

    def cancel_jobs(self, session: SparkSession, tag: str) -> None:
        if self.is_alive:
            session.sparkContext.cancelJobsWithTag(tag)

    def plan_frame(self, frame: DataFrame) -> None:
        cast("Any", frame)._jdf.queryExecution().toRdd().getNumPartitions()

    def open_parser(self, session: SparkSession) -> SqlParser:
        return SqlParser.of_session(session)

    def abort_start(self) -> None:
        if self.jvm is not None:
            self.jvm.kill()

    def close_session(self, session: SparkSession) -> None:
        """Do nothing: the JVM collects unreferenced sessions."""

    def stop(self, sessions: list[SparkSession]) -> None:
        if self.jvm is not None:
            gateway = self.jvm.gateway
            self.jvm.stop()  # its shutdown hooks stop the application
            self.jvm = None
            _forget_singletons(gateway)
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None


@contextmanager
def _label_jobs(context: SparkContext, jobs: JobLabels) -> Generator[None]:
    """Tag this thread's jobs for cancellation, and put them into their slot's scheduler pool."""
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
def _set_property(context: SparkContext, name: str, value: str) -> Generator[None]:
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        context.setLocalProperty(name, cast("str", None))


def _run_in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """Run outside the main thread, because PySpark would install a SIGINT handler there."""
    with ThreadPoolExecutor(1, "spark-start") as pool:
        return pool.submit(work, *args).result()


def _open_session(process: jvm.JvmProcess, conf: dict[str, str]) -> SparkSession:
    for name in _EARLY_IMPORTS:
        importlib.import_module(name)
    silence_pyspark()
    gateway = process.connect()
    context = SparkContext(
        conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
    )
    # PySpark takes this from an environment variable. Python workers must use this interpreter,
    # unless the machines of the cluster have their interpreter under another path.
    context.pythonExec = conf.get("spark.pyspark.python", sys.executable)
    context.setLogLevel("WARN")
    _ignore_disconnects(context)
    _drop_unsafe_functions(gateway)
    return register_sources(SparkSession(context))


def _ignore_disconnects(context: SparkContext) -> None:
    """Print no traceback when a JVM that exits closes its connection to PySpark's listener."""
    server = cast("Any", context)._accumulatorServer
    print_error = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            print_error(request, address)

    server.handle_error = handle_error


def _drop_unsafe_functions(gateway: Any) -> None:
    """Drop the SQL functions that can call any Java method or read any file."""
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst
    for name in UNSAFE_FUNCTIONS:
        catalyst.analysis.FunctionRegistry.builtin().dropFunction(catalyst.FunctionIdentifier(name))


def _forget_singletons(gateway: object) -> None:
    """Reset PySpark's per-process application after its JVM has died."""
    context = cast("Any", SparkContext)
    session = cast("Any", SparkSession)
    if context._gateway is not gateway:
        return  # the application of another JVM that still runs
    dead = context._active_spark_context
    # The server for the JVM's streaming callbacks would outlive the JVM.
    if context._gateway is not None and context._gateway.__dict__.get("_callback_server"):
        context._gateway.shutdown_callback_server()
    if dead is not None:
        dead._jsc = None  # no JVM to call
        dead.stop()
    context._active_spark_context = context._gateway = context._jvm = None
    session._instantiatedSession = session._activeSession = None


def silence_pyspark() -> None:
    """Turn off PySpark's log of raised errors: it contains query text, and tasks report errors."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
