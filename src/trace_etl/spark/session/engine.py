"""Interface of the two kinds of Spark behind a worker: its own application, or a Connect server.

Only `classic_engine`, `connect_engine` and `sql_guard.query` know the difference.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.dispatcher_link import ignore_output
from trace_etl.spark.evm.source import EvmDataSource
from trace_etl.spark.sql_guard.plan_tree import SqlParser


@dataclass(frozen=True)
class JobLabels:
    """Labels of a task's Spark jobs: a tag to cancel them by, a title, a scheduler pool, their output."""

    tag: str
    title: str
    pool: str
    log: Callable[[bytes], None] = ignore_output
    """Keeps what Python code of executors prints."""


class SparkEngine(Protocol):
    """One way to start and use Spark."""

    def start(self) -> SparkSession:
        """Start Spark and return its first session. Raises SparkNotStarted."""
        ...

    def new_session(self, spark: SparkSession) -> SparkSession:
        """Open another session, with its own views and settings."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether Spark still answers."""
        ...

    def is_usable(self, session: SparkSession) -> bool:
        """Whether an idle session can still be used."""
        ...

    def use_session(
        self, session: SparkSession, jobs: JobLabels | None
    ) -> AbstractContextManager[None]:
        """Use the session in this thread, and label its Spark jobs."""
        ...

    def cancel_jobs(self, session: SparkSession, tag: str) -> None:
        """Cancel the running jobs with this tag. Callable from any thread."""
        ...

    def plan_frame(self, frame: DataFrame) -> None:
        """Make Spark plan a frame without running it."""
        ...

    def open_parser(self, session: SparkSession) -> SqlParser:
        """Return Spark's SQL parser in a JVM of this process. Raises SparkNotStarted."""
        ...

    def abort_start(self) -> None:
        """Make a start in progress fail. Callable from any thread."""
        ...

    def close_session(self, session: SparkSession) -> None:
        """Close a session that will not be used again. Raises no error of Spark."""
        ...

    def stop(self, sessions: list[SparkSession]) -> None:
        """Stop Spark and leave the process ready for another start."""
        ...


def register_sources(spark: SparkSession) -> SparkSession:
    """Register the `evm` data source in a session."""
    spark.dataSource.register(EvmDataSource)
    return spark
