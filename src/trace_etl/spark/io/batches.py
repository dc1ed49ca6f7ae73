"""Outputs to buffered datasets: write batches for the sink. Only the sink writes the table."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import Storage, TaskOutput
from trace_etl.dag.column_types import holds_without_loss
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadSql, BadTask, report_errors
from trace_etl.spark.io import reports
from trace_etl.spark.io.appends import cast_to_stored
from trace_etl.spark.io.column_names import map_batches, quote_name
from trace_etl.spark.io.storage import file_key
from trace_etl.spark.io.writers import Frame
from trace_etl.spark.session.executors import freeze_imports

_REPORT: Any = pa.schema([("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
_REPORT_TYPE = from_arrow_schema(_REPORT)


def write(context: OperatorContext, result: Frame) -> TaskResult:
    """Write batches under the attempt's prefix and publish them. Raises BadSql or BadTask."""
    [output] = context.task.outputs
    if context.link is None or context.link.publish is None:
        raise BadTask(f"output {output.name}: this runner is not connected to a Dispatcher")
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
        )
    total = sum(row["rows"] for row in rows)
    return reports.report_buffered(context.task, output, total, sum(row["bytes"] for row in rows))


def cast_to_declared(frame: DataFrame, output: TaskOutput) -> DataFrame:
    """Cast columns to the published schema. Raises BadSql naming a column that does not fit."""
    types = {column["name"]: column["type"] for column in output.columns or ()}
    for field in frame.schema.fields:
        if field.name not in types:
            raise BadSql(f"output {output.name}: the published schema has no column {field.name}")
        if not holds_without_loss(types[field.name], field.dataType.typeName()):
            raise BadSql(
                f"output {output.name}: column {field.name} is {field.dataType.simpleString()}, "
                f"but {types[field.name]} in the published schema: CAST it"
            )
    for column in output.columns or ():
        if column["name"] not in frame.columns and not column["nullable"]:
            raise BadSql(f"output {output.name}: the result has no column {column['name']}")
    return frame.select(*(F.col(quote_name(n)).cast(types[n]).alias(n) for n in frame.columns))


@dataclass(frozen=True)
class _BatchWriter:
    """Runs on an executor: writes rows to files of JSON lines, none too large for the sink."""

    store: ObjectStore
    storage: Storage

    @report_errors
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        files = [self._write_file(n, lines) for n, lines in enumerate(pack_rows(batches))]
        freeze_imports()
        columns = [list(column) for column in zip(*files, strict=True)] or [[], [], []]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _REPORT, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_REPORT)

    def _write_file(self, number: int, lines: list[bytes]) -> tuple[str, int, int]:
        name = f"batch-{number:05d}.jsonl"
        content = b"".join(lines)
        self.store.put(file_key(self.store, self.storage, name), content)
        return name, len(lines), len(content)


def pack_rows(batches: Iterator[Any]) -> Iterator[list[bytes]]:
    """Encode rows as lines of JSON, grouped into batches of at most the maximum size."""
    lines: list[bytes] = []
    size = 0
    for batch in batches:
        for row in batch.to_pylist():
            line = (
                json.dumps(
                    row, default=lambda value: "0x" + bytes(value).hex(), ensure_ascii=False
                ).encode()
                + b"\n"
            )
            if lines and (size + len(line) > MAX_BATCH_BYTES or len(lines) >= MAX_BATCH_ROWS):
                yield lines
                lines, size = [], 0
            lines.append(line)
            size += len(line)
    if lines:
        yield lines
