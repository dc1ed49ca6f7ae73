"""Hot tables as inputs: one statement per read, with scope and filters pushed down to Postgres."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.chain.chain_rows import expected
from support.services.postgres import Templates, copied
from support.spark.following import FollowedChain, catch_up, new_stream
from support.spark.spark_tasks import rows, select
from trace_etl.api.task.payload import Scope, TaskInput
from trace_etl.devtools.devchain import DevChain
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import InputMissing
from trace_etl.spark.io import hot_tables
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings


@pytest.fixture(scope="module")
def stream(templates: Templates, rpc_url: str) -> Generator[FollowedChain]:
    with copied(templates) as dsns:
        made = new_stream(dsns.data)
        with made.attempt(1, rpc_url) as follower:
            catch_up(follower)
        yield made


def _input(stream: FollowedChain, kind: str, where: dict[str, Any] | None = None) -> dict[str, Any]:
    [output] = [one for one in stream.outputs if one.kind == kind]
    return {
        "input_index": 0,
        "name": f"hot_{kind}",
        "dataset_uuid": output.dataset_uuid,
        "dataset_version": output.dataset_version,
        "where": where,
    }


def _load(spark: SparkSession, stream: FollowedChain, kind: str, **how: Any) -> hot_tables.Input:
    scope = Scope(**{key: how.pop(key) for key in list(how) if key != "where"})
    given = TaskInput.model_validate(_input(stream, kind, **how))
    return hot_tables.load(spark.newSession(), given, scope, stream.dsn)


@pytest.mark.parametrize("kind", ["blocks", "transactions", "logs"])
def test_hot_tables_return_every_value_of_the_chain(
    spark: SparkSession, stream: FollowedChain, chain: DevChain, kind: str
) -> None:
    table = _load(spark, stream, kind, start=5, end=20).frame.toArrow()
    order = [(name, "ascending") for name in table.column_names if name in _KEYS]
    assert table.sort_by(order).to_pylist() == expected(chain, 5, 20)[kind]


_KEYS = ("block_number", "transaction_index", "log_index")


def test_rows_after_the_last_cursor_are_read(
    spark: SparkSession, stream: FollowedChain, chain: DevChain
) -> None:
    found = _load(spark, stream, "blocks", after=30, cursor=33).frame.collect()
    assert sorted(row["block_number"] for row in found) == [31, 32, 33]


def test_scope_and_filter_are_pushed_down_to_postgres(
    spark: SparkSession, stream: FollowedChain, chain: DevChain
) -> None:
    log = expected(chain, 5, 20)["logs"][0]
    wanted = "0x" + log["address"].hex()
    frame = _load(spark, stream, "logs", start=5, end=20, where={"address": wanted}).frame
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" not in plan.split("BatchScan")[0], plan  # Spark evaluates no filter
    found = frame.toArrow().to_pylist()
    assert found and all(row["address"] == log["address"] for row in found)


def test_no_plan_contains_the_connection_string(spark: SparkSession, stream: FollowedChain) -> None:
    frame = _load(spark, stream, "logs", start=5, end=20).frame
    execution = frame._jdf.queryExecution()
    plans = execution.toString() + execution.analyzed().toJSON() + execution.executedPlan().toJSON()
    [relation] = [one for one in _leaves(execution.analyzed()) if "hot" in one.toString()]
    assert stream.dsn not in plans
    assert stream.dsn not in relation.options().asCaseSensitiveMap().toString()


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(n) for n in range(leaves.size())]


def test_a_task_reads_a_hot_table_as_an_input(
    stream: FollowedChain, chain: DevChain, tmp_path: Path, runner: SparkRunner
) -> None:
    settings = SparkSettings(FileStore(tmp_path), tmp_path / "spark", data_dsn=stream.dsn)
    mine = SparkRunner(settings)
    mine.session = runner.session
    task = select(
        "SELECT count(*) AS n, max(block_number) AS last FROM hot_logs",
        _input(stream, "logs"),
        scope={"partition_key": "0-9", "start": 0, "end": 9},
    )
    mine.run(task)
    logs = expected(chain, 0, 9)["logs"]
    assert rows(tmp_path, task, "answer") == [
        {"n": len(logs), "last": max(log["block_number"] for log in logs)}
    ]


def test_each_read_of_a_hot_table_in_a_select_has_its_own_filter(
    stream: FollowedChain, chain: DevChain, tmp_path: Path, runner: SparkRunner
) -> None:
    mine = SparkRunner(SparkSettings(FileStore(tmp_path), tmp_path / "spark", data_dsn=stream.dsn))
    mine.session = runner.session
    task = select(
        "SELECT count(*) AS n FROM hot_logs a JOIN hot_logs b ON a.block_number = b.block_number"
        " AND a.log_index = b.log_index + 1 WHERE b.log_index < 1",
        _input(stream, "logs"),
        scope={"partition_key": "0-9", "start": 0, "end": 9},
    )
    mine.run(task)
    pairs = [log for log in expected(chain, 0, 9)["logs"] if log["log_index"] == 1]
    assert rows(tmp_path, task, "answer") == [{"n": len(pairs)}] != [{"n": 0}]


def test_a_missing_hot_table_is_reported_as_a_missing_input(
    spark: SparkSession, stream: FollowedChain
) -> None:
    given = TaskInput.model_validate(_input(new_stream(stream.dsn), "logs"))
    with pytest.raises(InputMissing, match="input hot_logs"):
        hot_tables.load(spark, given, None, stream.dsn)
