"""Buffered outputs: rows go to the sink as batches, and a reader gets them by cursor."""

from collections.abc import Generator
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession

from support.data.buffered import write_rows
from support.services.postgres import Templates, copied
from support.spark.spark_tasks import task
from trace_etl.api.task.buffers import MAX_BATCH_BYTES, BufferBatch
from trace_etl.api.task.payload import Scope, TaskInput, TaskPayload
from trace_etl.data import buffers, connection
from trace_etl.model.storage import attempt_prefix, buffer_prefix, hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.sink import batch_files, columnar
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.spark.errors import BadSql
from trace_etl.spark.io import batches as pipeline_batches
from trace_etl.spark.io import hot_tables
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

COLUMNS = [
    {"name": "who", "type": "binary", "nullable": False},
    {"name": "amount", "type": "long", "nullable": True},
    {"name": "note", "type": "string", "nullable": True},
]
PublishedBatches = list[tuple[UUID, str, int, int]]


@pytest.fixture(scope="module")
def dsn(templates: Templates) -> Generator[str]:
    with copied(templates) as dsns:
        yield dsns.data


@pytest.fixture(scope="module")
def mine(runner: SparkRunner, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> SparkRunner:
    place = tmp_path_factory.mktemp("buffered")
    made = SparkRunner(SparkSettings(FileStore(place), place, data_dsn=dsn))
    made.session = runner.session
    return made


def _task(sql: str) -> TaskPayload:
    made = task(
        "sql", {"sql": sql}, ["answer"], scope={"partition_key": "0-9", "start": 0, "end": 9}
    )
    (output,) = made.outputs
    prefix = attempt_prefix(buffer_prefix(output.dataset_uuid), made.task_id, made.attempt)
    change = {
        "update_strategy": "append",
        "unique_key": ["who"],
        "columns": COLUMNS,
        "storage_ref": output.storage_ref.model_copy(update={"prefix": prefix}),
    }
    return made.model_copy(update={"outputs": [output.model_copy(update=change)]})


def _run(mine: SparkRunner, payload: TaskPayload) -> tuple[Any, PublishedBatches]:
    published: PublishedBatches = []

    def publish(
        dataset_uuid: UUID,
        batch_uri: str,
        *,
        record_count: int,
        batch_size_bytes: int,
        content_type: str,
    ) -> None:
        assert content_type == columnar.PARQUET
        published.append((dataset_uuid, batch_uri, record_count, batch_size_bytes))

    def emit(*_: Any) -> None:
        raise AssertionError("the task must not emit events before the sink has written the rows")

    return mine.run(payload, DispatcherLink(emit, publish)), published


def _batch(payload: TaskPayload, uri: str, rows: int) -> BufferBatch:
    (output,) = payload.outputs
    return BufferBatch.model_validate(
        {
            "publish_id": uuid4(),
            "publish_no": 1,
            "org_id": UUID(int=1),  # the organisation of the bucket
            "task_id": payload.task_id,
            "attempt": payload.attempt,
            "dataset_uuid": output.dataset_uuid,
            "dataset_version": output.dataset_version,
            "batch_uri": uri,
            "content_type": columnar.PARQUET,
            "record_count": rows,
            "columns": COLUMNS,
            "unique_key": ["who"],
        }
    )


def test_rows_are_published_as_batches_that_the_sink_can_read(mine: SparkRunner) -> None:
    payload = _task(
        "SELECT X'ff00' AS who, 7 AS amount, 'é' AS note UNION ALL SELECT X'01', NULL, ''"
    )
    result, published = _run(mine, payload)
    (reported,) = result.outputs
    assert (reported.row_count, result.events, result.datasets_published) == (2, [], [])
    ((dataset_uuid, uri, rows, size),) = published
    assert (dataset_uuid, rows) == (payload.outputs[0].dataset_uuid, 2)
    root = mine.settings.objects.root
    assert (root / uri.removeprefix("s3://")).stat().st_size == size
    batch = _batch(payload, uri, rows)
    read = batch_files.read_rows(batch, mine.settings.objects, max_bytes=MAX_BATCH_BYTES)
    found = sorted(tuple(row.values()) for row in read.to_pylist())
    assert found == [(b"\x01", None, ""), (b"\xff\x00", 7, "é")]


def test_large_outputs_are_split_into_batches_below_the_size_limit() -> None:
    parts = list(pipeline_batches.pack_rows(iter(_tables(25)), max_bytes=100))
    assert len(parts) > 5
    assert max(part.nbytes for part in parts) <= 100
    assert sum(part.num_rows for part in parts) == 25


def test_batches_do_not_exceed_the_row_limit_of_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_batches, "MAX_BATCH_ROWS", 10)
    parts = list(pipeline_batches.pack_rows(iter(_tables(25))))
    assert sum(part.num_rows for part in parts) == 25
    assert max(part.num_rows for part in parts) <= 10


def _tables(rows: int) -> list[Any]:
    import pyarrow as pa

    return [pa.RecordBatch.from_pylist([{"n": n, "text": "x" * 10} for n in range(rows)])]


def test_an_output_without_rows_publishes_no_batch(mine: SparkRunner) -> None:
    result, published = _run(mine, _task("SELECT X'00' AS who WHERE false"))
    assert (result.outputs[0].row_count, published) == (0, [])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT X'00' AS who, 1 AS other", "no column other"),
        ("SELECT 1 AS amount", "no column who"),
        ("SELECT X'00' AS who, current_date() AS note", "CAST it"),
        ("SELECT X'00' AS who, '7' AS amount", "amount is string, but long in the published"),
        ("SELECT X'00' AS who, 1.5D AS amount", "amount is double, but long"),
        ("SELECT X'00' AS who, 1 AS note", "note is int, but string"),
        ("SELECT 'a' AS who", "who is string, but binary"),
    ],
)
def test_a_select_that_does_not_match_the_schema_is_refused(
    mine: SparkRunner, sql: str, message: str
) -> None:
    with pytest.raises(BadSql, match=message):
        _run(mine, _task(sql))


def test_a_reader_gets_rows_changed_since_its_cursor_without_internal_columns(
    spark: SparkSession, dsn: str
) -> None:
    dataset, version = uuid4(), uuid4()
    columns = (("id", "string", False), ("n", "long", True))
    shape = buffers.BufferTable(hot_table(dataset, version), version, columns, ("id",))
    for number, rows in enumerate([[("a", 1), ("b", 1)], [("b", 2)], [("c", 3)]], 1):
        with connection.connect(dsn) as conn, connection.transaction(conn):
            write_rows(conn, shape, number, rows)
    given = TaskInput(input_index=0, name="alerts", dataset_uuid=dataset, dataset_version=version)
    read = hot_tables.load(spark, given, Scope(cursor=2, after=1), dsn).frame
    assert read.columns == ["id", "n", "org_id"]
    assert [tuple(row)[:2] for row in read.collect()] == [("b", 2)]
    everything = hot_tables.load(spark, given, Scope(cursor=3), dsn).frame
    assert sorted(tuple(row)[:2] for row in everything.collect()) == [("a", 1), ("b", 2), ("c", 3)]
