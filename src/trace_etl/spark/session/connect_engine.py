"""A server that speaks Spark Connect: no JVM of ours, and no way into the server's."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.classic_engine import silence_pyspark
from trace_etl.spark.session.conf import session_conf
from trace_etl.spark.session.engine import JobLabels, register_sources
from trace_etl.spark.session.failures import first_line, is_spark_lost
from trace_etl.spark.settings import SparkSettings

_OLDEST = 4  # the first with data sources in Python
# A SELECT is judged by what Spark says of its plan: nothing may be left out.
_WHOLE_PLANS = {
    "spark.sql.debug.maxToStringFields": "1000000",
    "spark.sql.maxPlanStringLength": "2147483632",  # the most it takes
}
# A server that does not answer for this long has gone; PySpark itself would ask for ten minutes.
_TRIES, _LONGEST_PAUSE_MS = 7, 3000


class ConnectEngine:
    """Sessions of one server; each is a session of its own there, too."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._first: SparkSession | None = None

    def start(self) -> SparkSession:
        silence_pyspark()
        logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)  # it logs plans
        spark: SparkSession | None = None
        try:
            spark = SparkSession.builder.remote(self._settings.master).create()
            self._first = _prepared(spark, self._settings)
        except (PySparkException, grpc.RpcError, ValueError) as error:
            if spark is not None:
                _close(spark)
            raise SparkNotStarted(_reason(error)) from error
        except SparkNotStarted:
            _close(cast("SparkSession", spark))
            raise
        return self._first

    def another(self, spark: SparkSession) -> SparkSession:
        made = spark.newSession()
        try:
            return _prepared(made, self._settings)
        except BaseException:
            _close(made)
            raise

    @property
    def is_alive(self) -> bool:
        first = self._first
        return first is not None and self.holds(first)

    def holds(self, session: SparkSession) -> bool:
        """Servers forget sessions that nobody used for an hour, and all of them at a restart."""
        try:
            session.conf.get("spark.sql.session.timeZone")
        except PySparkException:
            return False
        return True

    @contextmanager
    def working(self, session: SparkSession, jobs: JobLabels | None) -> Generator[None]:
        # How cores are shared is the server's business: a client cannot name a pool.
        if jobs is None:
            yield
            return
        session.addTag(jobs.tag)
        try:
            yield
        finally:
            session.removeTag(jobs.tag)

    def interrupt(self, session: SparkSession, tag: str) -> None:
        try:
            session.interruptTag(tag)
        except PySparkException as error:
            if not is_spark_lost(error):  # a server that has gone runs nothing
                raise

    def plan(self, frame: DataFrame) -> None:
        cast("Any", frame)._explain_string()

    def kill(self) -> None:
        """Nothing to end: a start gives up by itself."""

    def release(self, session: SparkSession) -> None:
        _close(session)

    def stop(self, sessions: list[SparkSession]) -> None:
        for session in [*sessions, *filter(None, [self._first])]:
            _close(session)
        self._first = None


def _prepared(spark: SparkSession, settings: SparkSettings) -> SparkSession:
    """Our settings and sources in a fresh session. Raises SparkNotStarted."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client = cast("Any", spark).client
    client.set_retry_policies(
        [DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_PAUSE_MS, jitter=100)]
    )
    if int(spark.version.partition(".")[0]) < _OLDEST:
        raise SparkNotStarted(f"the server is Spark {spark.version}; Trace needs Spark 4 or newer")
    wanted = {**session_conf(settings), **settings.spark_conf, **_WHOLE_PLANS}
    for name in settings.spark_conf:
        if not spark.conf.isModifiable(name):
            raise SparkNotStarted(
                f"TRACE_SPARK_CONF: {name} cannot be set by a client of Spark Connect; "
                "set it where the server is started"
            )
    for name, value in wanted.items():
        spark.conf.set(name, value)
    return register_sources(spark)


def _close(session: SparkSession) -> None:
    """Release it, if the server is there to hear it; else an exit would wait for it again."""
    client = cast("Any", session).client
    client.set_retry_policies([])
    session.stop()


def _reason(error: Exception) -> str:
    if isinstance(error, PySparkException) and not is_spark_lost(error):
        return f"Spark Connect: {first_line(error)}"
    if isinstance(error, ValueError):
        return f"TRACE_SPARK_MASTER is not an address of Spark Connect: {error}"
    return (
        "no Spark Connect server answers at TRACE_SPARK_MASTER (with a token the connection is "
        "TLS, unless the host is localhost)"
    )
