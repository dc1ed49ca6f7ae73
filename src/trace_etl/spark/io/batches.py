"""Outputs to buffered datasets: write batches for the sink. Only the sink writes the table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import Storage, TaskOutput
from trace_etl.dag.column_types import holds_without_loss, parse_type
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql, BadTask, report_errors
from trace_etl.spark.io import reports
from trace_etl.spark.io.appends import cast_to_stored
from trace_etl.spark.io.column_names import map_batches, quote_name
from trace_etl.spark.io.storage import file_key
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.session.executors import freeze_imports

_CONTENT_TYPE = "application/vnd.apache.parquet"
_parquet: Any = pq
_REPORT: Any = pa.schema([("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
_REPORT_TYPE = from_arrow_schema(_REPORT)


def write(context: OperatorContext, result: Frame) -> TaskResult:
    """Write batches under the attempt's prefix and publish them. Raises BadSql or BadTask."""
    [output] = context.task.outputs
    if context.link is None or context.link.publish is None:
        raise BadTask(
            f"output {output.name}: this runner is not connected to a Dispatcher; run the task on a worker"
        )
    frame = cast_to_stored(cast_to_declared(result.frame, output), output, is_buffered=True)
    writer = _BatchWriter(context.settings.objects, output.storage_ref)
    written = map_batches(frame.coalesce(1), writer, _REPORT_TYPE)
    rows = cast("Any", written).collect()
    for row in rows:
        context.check()
        context.link.publish(
            output.dataset_uuid,
            f"{output.storage_ref.ref().url}{row['name']}",
            record_count=row["rows"],
            batch_size_bytes=row["bytes"],
            content_type=_CONTENT_TYPE,
        )
    total = sum(row["rows"] for row in rows)
    return reports.report_buffered(context.task, output, total, sum(row["bytes"] for row in rows))


def cast_to_declared(frame: DataFrame, output: TaskOutput) -> DataFrame:
    """Cast columns to the published schema. Raises BadSql naming a column that does not fit."""
    types = {column["name"]: column["type"] for column in output.columns or ()}
    for field in frame.schema.fields:
        if field.name not in types:
            raise BadSql(
                f"output {output.name}: the published schema has no column {field.name}; add it, or do not select it"
            )
        if not holds_without_loss(types[field.name], field.dataType.simpleString()):
            raise BadSql(
                f"output {output.name}: column {field.name} is {field.dataType.simpleString()}, "
                f"but {types[field.name]} in the published schema: CAST it"
            )
    for column in output.columns or ():
        if column["name"] not in frame.columns and not column["nullable"]:
            raise BadSql(
                f"output {output.name}: the result has no column {column['name']}; select it"
            )
    return frame.select(
        *(F.col(quote_name(n)).cast(_choose_spark_type(types[n])).alias(n) for n in frame.columns)
    )


def _choose_spark_type(declared: str) -> str:
    full = parse_type(declared)
    return full.spark if full else declared


@dataclass(frozen=True)
class _BatchWriter:
    """Runs on an executor: writes rows to Parquet files, none too large for the sink."""

    store: ObjectStore
    storage: Storage

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        files = [self._write_file(n, table) for n, table in enumerate(pack_rows(batches))]
        freeze_imports()
        columns = [list(column) for column in zip(*files, strict=True)] or [[], [], []]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _REPORT, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_REPORT)

    def _write_file(self, number: int, table: Any) -> tuple[str, int, int]:
        name = f"batch-{number:05d}.parquet"
        sink = pa.BufferOutputStream()
        _parquet.write_table(table, sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
        self.store.put(file_key(self.store, self.storage, name), content)
        return name, table.num_rows, len(content)


def pack_rows(batches: Iterator[Any], *, max_bytes: int = MAX_BATCH_BYTES // 2) -> Iterator[Any]:
    """Group rows into tables, none larger than the sink accepts.

    The limit is half of the sink's: a file can be larger than its rows in memory, by its headers.
    """
    pending: list[Any] = []
    rows = size = 0
    for batch in (piece for whole in batches for piece in _split(whole, max_bytes)):
        if pending and (size + batch.nbytes > max_bytes or rows + batch.num_rows > MAX_BATCH_ROWS):
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if pending:
        yield pa.Table.from_batches(pending)


def _split(batch: Any, max_bytes: int) -> Iterator[Any]:
    """Yield slices of a record batch that are not larger than the limits, if rows allow it."""
    if batch.num_rows <= 1 or (batch.nbytes <= max_bytes and batch.num_rows <= MAX_BATCH_ROWS):
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _split(batch.slice(0, half), max_bytes)
    yield from _split(batch.slice(half), max_bytes)
