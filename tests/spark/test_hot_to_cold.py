"""From hot to cold: final blocks are compacted, and deleted from hot tables after the commit."""

from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from support.chain.chain_rows import expected
from support.services.postgres import Templates, copied
from support.spark.following import FollowedChain, catch_up, new_stream
from support.spark.spark_tasks import as_input, range_scope, rows, task
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import InputPartition, TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.model.storage import hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import BadTask
from trace_etl.spark.operators.hot_trim import covers
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings


@pytest.fixture
def stream(templates: Templates, rpc_url: str) -> Generator[FollowedChain]:
    with copied(templates) as dsns:
        made = new_stream(dsns.data)
        with made.attempt(1, rpc_url) as follower:
            catch_up(follower)
        yield made


@pytest.fixture
def mine(runner: SparkRunner, stream: FollowedChain, objects: Path, tmp_path: Path) -> SparkRunner:
    """The shared Spark session, for a worker that uses this stream's Postgres."""
    made = SparkRunner(SparkSettings(FileStore(objects), tmp_path, data_dsn=stream.dsn))
    made.session = runner.session
    return made


def _logs(stream: FollowedChain) -> dict[str, Any]:
    [output] = [one for one in stream.outputs if one.kind == "logs"]
    return {
        "input_index": 1,
        "name": "hot_logs",
        "dataset_uuid": output.dataset_uuid,
        "dataset_version": output.dataset_version,
    }


RANGES = {"input_index": 0, "name": "ranges", "dataset_uuid": uuid4(), "dataset_version": uuid4()}


def _compact(stream: FollowedChain, start: int, end: int) -> TaskPayload:
    inputs = [RANGES, _logs(stream)]
    scope = range_scope(start, end)
    return task("parquet_compact", {"size": 20}, ["logs"], scope=scope, inputs=inputs)


def _hot_blocks(stream: FollowedChain) -> set[int]:
    given = _logs(stream)
    table = hot_table(given["dataset_uuid"], given["dataset_version"])
    with psycopg.connect(stream.dsn) as conn:
        return {row[0] for row in conn.execute(f'SELECT block_number FROM "{table}"')}


def test_hot_blocks_are_deleted_only_after_they_are_committed_as_cold(
    mine: SparkRunner, objects: Path, stream: FollowedChain, chain: DevChain
) -> None:
    compacted = _compact(stream, 0, 19)
    mine.run(compacted)
    assert rows(objects, compacted, "logs") == expected(chain, 0, 19)["logs"]
    before = _hot_blocks(stream)
    cold = as_input(compacted, name="logs")
    for scope in (range_scope(0, 29), {"cursor": 40}):  # partly not cold yet; not a range
        trim = task("hot_trim", {}, ["gone"], scope=scope, inputs=[cold, _logs(stream)])
        assert mine.run(trim) == TaskResult() and _hot_blocks(stream) == before
    config = {"blocks_per_delete": 7}
    trim = task(
        "hot_trim", config, ["gone"], scope=range_scope(0, 19), inputs=[cold, _logs(stream)]
    )
    mine.run(trim)
    assert _hot_blocks(stream) == {block for block in before if block > 19}
    # A repeated compaction must not publish an empty partition for the trimmed blocks.
    with pytest.raises(
        BadTask, match="were trimmed from hot_logs; the committed partition is unchanged"
    ):
        mine.run(_compact(stream, 0, 19))
    again = _compact(stream, 20, 39)
    mine.run(again)
    assert rows(objects, again, "logs") == expected(chain, 20, 39)["logs"]


def test_a_task_with_a_partial_range_compacts_nothing(
    mine: SparkRunner, objects: Path, stream: FollowedChain
) -> None:
    for start, end in ((5, 24), (0, 9), (0, 39)):
        assert mine.run(_compact(stream, start, end)) == TaskResult()


@pytest.mark.parametrize(
    ("spans", "is_covered"),
    [
        ([(0, 9), (10, 19)], True),
        ([(10, 19), (0, 12)], True),
        ([(0, 9), (11, 19)], False),
        ([(0, 18)], False),
        ([(1, 30)], False),
        ([], False),
    ],
)
def test_a_range_is_covered_when_no_block_is_missing(
    spans: list[tuple[int, int]], is_covered: bool
) -> None:
    ref = {"scheme": "file", "bucket": "b", "prefix": "p/"}
    partitions = [
        InputPartition.model_validate(
            {"partition_key": f"{a}-{b}", "start": a, "end": b, "storage_ref": ref}
        )
        for a, b in spans
    ]
    assert covers(partitions, 0, 19) is is_covered
