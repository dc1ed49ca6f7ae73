"""Time partitions on a runner: which hours the rows belong to, and the rows of one hour."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.chain.chain_rows import expected
from support.spark.spark_tasks import as_input, ingest, rows, select
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import BadTask
from trace_etl.spark.runner import SparkRunner

SQL = "SELECT count(*) AS n, min(block_number) AS first FROM blocks"


def hour(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H")


def make_task(done: list[TaskPayload], **fields: Any) -> TaskPayload:
    column = fields.pop("time_column", "timestamp")
    blocks = {**as_input(*done, name="blocks"), "time_column": column}
    task = select(SQL, blocks, scope={"partition_key": fields.pop("key", "0-39")})
    return task.model_copy(update={"partition_by": "hour", **fields})


def test_hours_are_mapped_and_each_is_built_from_its_own_rows(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    done = [ingest(0, 19), ingest(20, 39)]
    for payload in done:
        runner.run(payload)
    times = {row["block_number"]: row["timestamp"] for row in expected(chain, 0, 39)["blocks"]}
    mapping = runner.run(make_task(done))
    assert (mapping.outputs, mapping.events) == ([], [])
    found = {item.partition_key: item.time_keys for item in mapping.mapped_partitions}
    assert found == {
        "0-19": sorted({hour(times[n]) for n in range(20)}),
        "20-39": sorted({hour(times[n]) for n in range(20, 40)}),
    }
    counted = 0
    for key in sorted({hour(second) for second in times.values()}):
        task = make_task(done, key=key, is_refresh=True)
        runner.run(task)
        (row,) = rows(objects, task, "answer")
        inside = [n for n, second in times.items() if hour(second) == key]
        assert (row["n"], row["first"]) == (len(inside), min(inside))
        counted += row["n"]
    assert counted == 40


@pytest.mark.parametrize(
    ("column", "message"), [("missing", "no column missing"), ("block_hash", "use a timestamp")]
)
def test_a_column_that_is_not_a_time_is_refused(
    runner: SparkRunner, column: str, message: str
) -> None:
    done = [ingest(0, 19)]
    runner.run(done[0])
    with pytest.raises(BadTask, match=message):
        runner.run(make_task(done, time_column=column))
