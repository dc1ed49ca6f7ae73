"""The Spark behind a worker: an application of its own, or a server that it is a client of.

All that differs between the two is in `classic`, `connect` and `queries`.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.evm.source import EvmDataSource


@dataclass(frozen=True)
class JobLabels:
    """What Spark is told of a task's jobs: how to stop them, and with whom they share cores."""

    tag: str
    title: str
    pool: str


class SparkEngine(Protocol):
    """One way to reach Spark."""

    def start(self) -> SparkSession:
        """The first session. Raises SparkNotStarted."""
        ...

    def another(self, spark: SparkSession) -> SparkSession:
        """A session with views and settings of its own."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether Spark still answers."""
        ...

    def holds(self, session: SparkSession) -> bool:
        """Whether a session that was idle can still be used."""
        ...

    def working(
        self, session: SparkSession, jobs: JobLabels | None
    ) -> AbstractContextManager[None]:
        """This thread works with the session; its jobs are these."""
        ...

    def interrupt(self, session: SparkSession, tag: str) -> None:
        """Stop the running jobs of a tag, from any thread."""
        ...

    def plan(self, frame: DataFrame) -> None:
        """Have Spark plan a frame without running it."""
        ...

    def kill(self) -> None:
        """Make a start under way fail, from any thread."""
        ...

    def release(self, session: SparkSession) -> None:
        """Let go of a session that will not be used again. Fails for no reason of Spark's."""
        ...

    def stop(self, sessions: list[SparkSession]) -> None:
        """End it, and leave the process ready for another start."""
        ...


def register_sources(spark: SparkSession) -> SparkSession:
    """The chain as a data source."""
    spark.dataSource.register(EvmDataSource)
    return spark
