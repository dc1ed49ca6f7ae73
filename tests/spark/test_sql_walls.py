"""Two walls around a user's SELECT: the SQL guard, and a process that cannot start programs."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.harmless_selects import HARMLESS
from support.hostile_selects import hostile_selects, hostile_statements
from trace_etl.spark.errors import BadSql
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.sql_guard.plan_tree import SqlParser
from trace_etl.spark.sql_guard.query import check_query

_BLOCKS = """
    SELECT id AS block_number, if(id % 2 = 0, 'a', 'b') AS miner, CAST(id AS INT) AS size,
           array('x', 'y') AS tags FROM range(5)
"""


@pytest.fixture(scope="module")
def session(runner: SparkRunner) -> Generator[SparkSession]:
    """A session like a task's, with the view `blocks`."""
    with runner.session.lease(runner.session.get(), ["blocks"]) as leased:
        leased.sql(_BLOCKS).createOrReplaceTempView("blocks")
        yield leased


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
