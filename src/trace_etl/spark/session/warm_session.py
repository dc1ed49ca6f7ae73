"""One warm Spark session per worker process, and a new one when it has died."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

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
        self.engine = _engine(settings)
        self._spark: SparkSession | None = None
        self._idle: list[SparkSession] = []

    def get(self) -> SparkSession:
        """The live session; starts or restarts Spark if need be. Raises SparkNotStarted."""
        known = self._spark
        # Asked without the lock: a server may take long to answer, and other slots go on.
        is_good = known is not None and self.engine.holds(known)
        with self._lock:
            if self._closing.is_set():
                raise SparkNotStarted("the worker is stopping")
            if self._spark is None or (self._spark is known and not is_good):
                self._discard()
                self._start()
            assert self._spark is not None
            return self._spark

    @contextmanager
    def lease(
        self, spark: SparkSession, views: Sequence[str], jobs: JobLabels | None = None
    ) -> Generator[SparkSession]:
        """A session of the same application for one task, in which it may make these views.

        Sessions are used again, because Spark's threads hold on to every one there ever was.
        """
        own = self._taken(spark)
        try:
            with self.engine.working(own, jobs):
                yield own
        finally:
            self._give_back(spark, own, views)

    def interrupt(self, session: SparkSession, tag: str) -> None:
        """Stop the jobs that carry the tag and run now."""
        if self._spark is not None:
            self.engine.interrupt(session, tag)

    @property
    def is_alive(self) -> bool:
        """Whether there is a session with a live Spark behind it."""
        return self._spark is not None and self.engine.is_alive

    def abandon(self, spark: SparkSession) -> None:
        """Give up a session whose Spark does not answer, unless another took its place already."""
        with self._lock:
            if self._spark is spark:
                self._discard()

    def restart(self) -> SparkSession:
        """Drop Spark, whatever its state, and start another."""
        with self._lock:
            self._discard()
        return self.get()

    def close(self) -> None:
        """Stop Spark, also one that is still starting. There is no way back."""
        self._closing.set()
        if self._spark is None:
            self.engine.kill()
        with self._lock:
            self._discard()

    def _taken(self, spark: SparkSession) -> SparkSession:
        """An idle session, or a new one."""
        while True:
            with self._lock:
                own = self._idle.pop() if self._idle and self._spark is spark else None
            if own is None:
                return self.engine.another(spark)
            if self.engine.holds(own):
                return own
            self.engine.release(own)

    def _give_back(self, spark: SparkSession, own: SparkSession, views: Sequence[str]) -> None:
        """Keep a session for the next task, or let go of it."""
        is_kept = False
        try:
            for view in views:
                own.catalog.dropTempView(view)
            with self._lock:
                if self._spark is spark:
                    self._idle.append(own)
                    is_kept = True
        finally:
            if not is_kept:
                self.engine.release(own)

    def _start(self) -> None:
        try:
            self._spark = self.engine.start()
        except SparkNotStarted:
            self._discard()
            raise

    def _discard(self) -> None:
        """Forget a session and end what is behind it, so that a new start finds nothing of it."""
        self._spark = None
        sessions, self._idle = self._idle, []
        self.engine.stop(sessions)


def _engine(settings: SparkSettings) -> SparkEngine:
    if not is_connect(settings.master):
        return ClassicEngine(settings)
    # Its packages take a while to import: only where they are needed.
    from trace_etl.spark.session.connect_engine import ConnectEngine

    return ConnectEngine(settings)
