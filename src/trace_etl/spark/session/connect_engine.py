"""Spark on a remote Spark Connect server, without access to a JVM."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session import jvm
from trace_etl.spark.session.classic_engine import silence_pyspark
from trace_etl.spark.session.conf import session_conf
from trace_etl.spark.session.engine import JobLabels, register_sources
from trace_etl.spark.session.failures import first_line, is_spark_lost
from trace_etl.spark.session.scratch import Scratch
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard.plan_tree import SqlParser

_MIN_VERSION = 4  # the first with Python data sources
_PARSER_MEMORY = "192m"
# Give up on a silent server after these retries; PySpark's default is ten minutes.
_MAX_RETRIES, _MAX_BACKOFF_MS = 7, 3000


class ConnectEngine:
    """Opens sessions on one server."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._first: SparkSession | None = None
        self._parser_lock = threading.Lock()
        self._parser: _ParserJvm | None = None

    def start(self) -> SparkSession:
        silence_pyspark()
        logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)  # it logs plans
        spark: SparkSession | None = None
        try:
            spark = SparkSession.builder.remote(self._settings.master).create()
            self._first = _prepare_session(spark, self._settings)
        except (PySparkException, grpc.RpcError, ValueError) as error:
            if spark is not None:
                _close_session(spark)
            raise SparkNotStarted(_describe_error(error)) from error
        except SparkNotStarted:
            _close_session(cast("SparkSession", spark))
            raise
        return self._first

    def new_session(self, spark: SparkSession) -> SparkSession:
        session = spark.newSession()
        try:
            return _prepare_session(session, self._settings)
        except BaseException:
            _close_session(session)
            raise

    @property
    def is_alive(self) -> bool:
        first = self._first
        return first is not None and self.is_usable(first)

    def is_usable(self, session: SparkSession) -> bool:
        """Servers drop a session after an idle hour, and all sessions at a restart."""
        try:
            session.conf.get("spark.sql.session.timeZone")
        except PySparkException:
            return False
        return True

    @contextmanager
    def use_session(self, session: SparkSession, jobs: JobLabels | None) -> Generator[None]:
        # A client cannot choose a scheduler pool on a server.
        if jobs is None:
            yield
            return
        session.addTag(jobs.tag)
        try:
            yield
        finally:
            session.removeTag(jobs.tag)

    def cancel_jobs(self, session: SparkSession, tag: str) -> None:
        try:
            session.interruptTag(tag)
        except PySparkException as error:
            if not is_spark_lost(error):  # a lost server runs no jobs
                raise

    def plan_frame(self, frame: DataFrame) -> None:
        cast("Any", frame)._explain_string()

    def open_parser(self, session: SparkSession) -> SqlParser:
        with self._parser_lock:
            if self._parser is None or not self._parser.process.is_alive:
                self._stop_parser()
                self._parser = _ParserJvm.start(self._settings)
            return self._parser.parser

    def _stop_parser(self) -> None:
        if self._parser is not None:
            self._parser.stop()
            self._parser = None

    def abort_start(self) -> None:
        """Do nothing: a start in progress ends after its retries."""

    def close_session(self, session: SparkSession) -> None:
        _close_session(session)

    def stop(self, sessions: list[SparkSession]) -> None:
        for session in [*sessions, *filter(None, [self._first])]:
            _close_session(session)
        self._first = None
        with self._parser_lock:
            self._stop_parser()


@dataclass(frozen=True)
class _ParserJvm:
    """A small JVM that parses SQL for the guard. It runs no queries."""

    process: jvm.JvmProcess
    scratch: Scratch
    parser: SqlParser

    @classmethod
    def start(cls, settings: SparkSettings) -> "_ParserJvm":
        scratch = Scratch.make(settings.spark_dir)
        process = jvm.launch(
            settings.java_home,
            memory=_PARSER_MEMORY,
            scratch=scratch.directory,
            is_brief=True,
            shares_group=settings.shares_group,
        )
        return cls(process, scratch, SqlParser.of_gateway(process.connect()))

    def stop(self) -> None:
        self.process.stop()
        self.scratch.remove()


def _prepare_session(spark: SparkSession, settings: SparkSettings) -> SparkSession:
    """Set retries, Spark settings and data sources of a new session. Raises SparkNotStarted."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client = cast("Any", spark).client
    client.set_retry_policies(
        [DefaultPolicy(max_retries=_MAX_RETRIES, max_backoff=_MAX_BACKOFF_MS, jitter=100)]
    )
    if int(spark.version.partition(".")[0]) < _MIN_VERSION:
        raise SparkNotStarted(
            f"TRACE_SPARK_MASTER: the server runs Spark {spark.version}; Trace needs Spark 4 or newer"
        )
    conf = {**session_conf(settings), **settings.spark_conf}
    for name in settings.spark_conf:
        if not spark.conf.isModifiable(name):
            raise SparkNotStarted(
                f"TRACE_SPARK_CONF: a Spark Connect client cannot set {name}; "
                "set it when you start the server"
            )
    for name, value in conf.items():
        spark.conf.set(name, value)
    return register_sources(spark)


def _close_session(session: SparkSession) -> None:
    """Close a session without retries, so that an exit does not wait for a lost server."""
    client = cast("Any", session).client
    client.set_retry_policies([])
    session.stop()


def _describe_error(error: Exception) -> str:
    if isinstance(error, PySparkException) and not is_spark_lost(error):
        return f"Spark Connect: {first_line(error)}"
    if isinstance(error, ValueError):
        return f"TRACE_SPARK_MASTER is not a Spark Connect address: {error}"
    return (
        "no Spark Connect server answers at TRACE_SPARK_MASTER; check the address "
        "(with a token the connection uses TLS, unless the host is localhost)"
    )
