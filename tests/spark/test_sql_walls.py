"""Two walls around a user's SELECT: the SQL guard, and a process that cannot start programs."""

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.sql.harmless_selects import HARMLESS
from support.sql.hostile_selects import hostile_selects, hostile_statements
from trace_etl.spark.errors import BadSql
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.sql_guard.plan_tree import SqlParser
from trace_etl.spark.sql_guard.query import check_query

_BLOCKS = """
    SELECT id AS block_number, if(id % 2 = 0, 'a', 'b') AS miner, CAST(id AS INT) AS size,
           array('x', 'y') AS tags FROM range(5)
"""

# Most statements fail within milliseconds: compiling them would take longer.
_FAST = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def session(runner: SparkRunner) -> Generator[SparkSession]:
    """A session like a task's, with the view `blocks`."""
    with runner.session.lease(runner.session.get(), ["blocks"]) as leased:
        leased.sql(_BLOCKS).createOrReplaceTempView("blocks")
        previous = {name: leased.conf.get(name) for name in _FAST}
        for name, value in _FAST.items():
            leased.conf.set(name, value)
        yield leased
        for name, value in previous.items():
            leased.conf.set(name, cast("str", value))


def test_the_guard_alone_refuses_every_hostile_select(
    session: SparkSession, tmp_path: Path
) -> None:
    corpus = list(hostile_selects(tmp_path, tmp_path / "secret", sys.executable))
    assert len(corpus) >= 150
    texts = [text for text, _ in corpus] + hostile_statements(tmp_path / "secret")
    assert [text for text in texts if not _is_refused(session, text)] == []


def _is_refused(session: SparkSession, text: str) -> bool:
    try:
        check_query(SqlParser.of_session(session), text, ["blocks"])
    except BadSql:
        return True
    return False


def test_unusual_harmless_selects_pass(session: SparkSession) -> None:
    assert len(HARMLESS) >= 100
    failed: list[str] = []
    for text in HARMLESS:
        try:
            assert (
                check_query(SqlParser.of_session(session), text, ["blocks"])
                .frame(session)
                .schema.fields
            )
        except Exception as error:
            failed.append(f"{text[:200]}: {str(error)[:300]}")
    assert failed == []


def test_without_the_guard_no_select_starts_a_program_or_reads_a_file(
    session: SparkSession, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SESAME\n")
    corpus = list(hostile_selects(tmp_path, secret, sys.executable))
    assert [text for text, _ in corpus if "SESAME" in _run_unchecked(session, text)] == []
    assert [text for text, marker in corpus if marker.exists()] == []
    called = cast("Any", session)._jvm.java.lang.System.getProperty("trace.hostile")
    assert called is None


def _run_unchecked(session: SparkSession, text: str) -> str:
    try:
        return str(session.sql(text).collect())
    except (PySparkException, Py4JJavaError) as error:
        return type(error).__name__


def test_the_kernel_refuses_programs_to_the_jvm_but_not_the_workers_python(
    session: SparkSession,
) -> None:
    def try_programs(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        def can_run(program: str) -> bool:
            try:
                return subprocess.run([program, "-c", ""], check=False).returncode == 0
            except PermissionError:
                return False

        for _ in batches:
            found = {"python": [can_run(sys.executable)], "shell": [can_run("/bin/sh")]}
            yield pa.RecordBatch.from_pydict(found)

    with pytest.raises((PySparkException, Py4JJavaError), match="Permission denied"):
        session.sql("SELECT TRANSFORM(1) USING 'cat' AS (a)").collect()
    [row] = session.range(1).mapInArrow(try_programs, "python boolean, shell boolean").collect()
    assert (row["python"], row["shell"]) == (True, False)
