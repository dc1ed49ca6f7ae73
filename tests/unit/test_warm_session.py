"""The warm session under concurrency, and how failures are classified. Needs no Spark."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.spark.spark_tasks import select
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import SparkLost, TaskCanceled
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.session import classic_engine
from trace_etl.spark.session.engine import JobLabels
from trace_etl.spark.session.failures import is_spark_lost
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.settings import SparkSettings
from trace_etl.spark.sql_guard.plan_tree import SqlParser


class _Failure(PySparkException):
    def __init__(self, condition: str) -> None:
        self._of = condition

    def getCondition(self) -> str:
        return self._of

    def __str__(self) -> str:
        return self._of


class _Engine:
    """A Spark engine that answers when the test allows it."""

    is_alive = True

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        self.on_work: Callable[[], None] = lambda: None
        self.answers.set()
        self.stops = 0

    def start(self) -> SparkSession:
        return cast("SparkSession", object())

    def new_session(self, spark: SparkSession) -> SparkSession:
        return cast("SparkSession", object())

    def is_usable(self, session: SparkSession) -> bool:
        self.asked.set()
        return self.answers.wait(300)

    @contextmanager
    def use_session(self, session: SparkSession, jobs: JobLabels | None) -> Generator[None]:
        self.on_work()
        yield

    def open_parser(self, session: SparkSession) -> SqlParser:
        raise AssertionError("no test parses SQL")

    def cancel_jobs(self, session: SparkSession, tag: str) -> None: ...

    def close_session(self, session: SparkSession) -> None: ...

    def abort_start(self) -> None: ...

    def stop(self, sessions: list[SparkSession]) -> None:
        self.stops += 1


@pytest.fixture
def engine() -> _Engine:
    return _Engine()


def _warm(tmp_path: Path, engine: Any) -> WarmSession:
    warm = WarmSession(SparkSettings(FileStore(tmp_path), tmp_path))
    warm.engine = engine
    return warm


def test_other_slots_continue_while_a_server_is_checked(tmp_path: Path, engine: _Engine) -> None:
    warm = _warm(tmp_path, engine)
    spark = warm.get()
    engine.answers.clear()
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(warm.get)
        try:
            assert engine.asked.wait(300)
            pool.submit(_leased, warm, spark).result(300)
            assert not asking.done()
        finally:
            engine.answers.set()
        assert asking.result(300) is spark


def _leased(warm: WarmSession, spark: SparkSession) -> None:
    with warm.lease(spark, []):
        pass


@pytest.mark.parametrize("is_canceled", [True, False], ids=["canceled", "left_alone"])
def test_a_canceled_task_does_not_restart_the_warm_session(
    tmp_path: Path, engine: _Engine, is_canceled: bool
) -> None:
    runner = SparkRunner(SparkSettings(FileStore(tmp_path), tmp_path))
    runner.session = _warm(tmp_path, engine)
    spark = runner.session.get()
    task = select("SELECT 1 AS a")

    def fail() -> None:
        if is_canceled:
            runner.cancel(task.task_id)
        raise _Failure("INVALID_HANDLE.SESSION_CLOSED")

    engine.on_work = fail
    with pytest.raises(TaskCanceled if is_canceled else SparkLost):
        runner.run(task)
    assert (runner.session.get() is spark) is is_canceled


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("INVALID_HANDLE.SESSION_CLOSED", True),
        ("INVALID_HANDLE.SESSION_CHANGED", True),
        ("INVALID_HANDLE.SESSION_NOT_FOUND", True),
        ("INVALID_HANDLE.OPERATION_NOT_FOUND", False),
        ("INVALID_HANDLE.OPERATION_ABANDONED", False),
        ("NO_ACTIVE_SESSION", True),
    ],
)
def test_only_a_lost_session_counts_as_lost(condition: str, expected: bool) -> None:
    assert is_spark_lost(_Failure(condition)) is expected


@pytest.mark.parametrize(
    ("error", "is_printed"), [(EOFError, False), (ConnectionResetError, False), (ValueError, True)]
)
def test_the_listener_of_the_jvm_hides_disconnects_and_prints_other_errors(
    error: type[Exception], is_printed: bool
) -> None:
    printed: list[object] = []
    server = SimpleNamespace(handle_error=lambda request, address: printed.append(request))
    classic_engine._ignore_disconnects(cast("Any", SimpleNamespace(_accumulatorServer=server)))
    try:
        raise error
    except error:
        server.handle_error("request", "address")
    assert bool(printed) == is_printed
