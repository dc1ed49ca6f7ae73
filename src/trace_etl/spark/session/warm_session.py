"""Keep one warm Spark application per worker process, and restart it when it dies."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from trace_etl.spark import output
from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.classic_engine import ClassicEngine
from trace_etl.spark.session.conf import is_connect
from trace_etl.spark.session.engine import JobLabels, SparkEngine
from trace_etl.spark.settings import SparkSettings


class WarmSession:
    """Holds the process's only Spark application. Safe to share between threads."""

    def __init__(self, settings: SparkSettings) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.engine = _make_engine(settings)
        self._spark: SparkSession | None = None
        self._idle: list[SparkSession] = []

    def get(self) -> SparkSession:
        """Return the live session; start or restart Spark if needed. Raises SparkNotStarted."""
        current = self._spark
        # Checked without the lock, because a server may answer slowly and other slots must continue.
        is_good = current is not None and self.engine.is_usable(current)
        with self._lock:
            if self._closing.is_set():
                raise SparkNotStarted("Spark does not start because the worker is stopping")
            if self._spark is None or (self._spark is current and not is_good):
                self._discard()
                self._start()
            assert self._spark is not None
            return self._spark

    @contextmanager
    def lease(
        self, spark: SparkSession, views: Sequence[str], jobs: JobLabels | None = None
    ) -> Generator[SparkSession]:
        """Reserve a session for one task, which may create these views in it.

        Sessions are reused, because Spark's threads keep every session that they ever used.
        """
        session = self._take_session(spark)
        try:
            with self.engine.use_session(session, jobs):
                yield session
        finally:
            self._return_session(spark, session, views)

    def cancel_jobs(self, session: SparkSession, tag: str) -> None:
        if self._spark is not None:
            self.engine.cancel_jobs(session, tag)

    @property
    def is_alive(self) -> bool:
        """Whether Spark is started and answers."""
        return self._spark is not None and self.engine.is_alive

    def abandon(self, spark: SparkSession) -> None:
        """Discard a session whose Spark does not answer, unless it was already replaced."""
        with self._lock:
            if self._spark is spark:
                self._discard()

    def restart(self) -> SparkSession:
        """Stop Spark, whatever its state, and start it again."""
        with self._lock:
            self._discard()
        return self.get()

    def close(self) -> None:
        """Stop Spark permanently, even if it is still starting."""
        self._closing.set()
        if self._spark is None:
            self.engine.abort_start()
        with self._lock:
            self._discard()

    def _take_session(self, spark: SparkSession) -> SparkSession:
        """Take an idle session, or open a new one."""
        while True:
            with self._lock:
                session = self._idle.pop() if self._idle and self._spark is spark else None
            if session is None:
                return self.engine.new_session(spark)
            if self.engine.is_usable(session):
                return session
            self.engine.close_session(session)

    def _return_session(
        self, spark: SparkSession, session: SparkSession, views: Sequence[str]
    ) -> None:
        """Keep a session for the next task, or close it if its application was replaced."""
        is_kept = False
        try:
            for view in views:
                session.catalog.dropTempView(view)
            with self._lock:
                if self._spark is spark:
                    self._idle.append(session)
                    is_kept = True
        finally:
            if not is_kept:
                self.engine.close_session(session)

    def _start(self) -> None:
        try:
            with output.attribute(None):  # the threads of the application serve all tasks
                self._spark = self.engine.start()
        except SparkNotStarted:
            self._discard()
            raise

    def _discard(self) -> None:
        """Stop the current application and drop its sessions."""
        self._spark = None
        sessions, self._idle = self._idle, []
        self.engine.stop(sessions)


def _make_engine(settings: SparkSettings) -> SparkEngine:
    if not is_connect(settings.master):
        return ClassicEngine(settings)
    # Imported here because its packages are slow to import.
    from trace_etl.spark.session.connect_engine import ConnectEngine

    return ConnectEngine(settings)
