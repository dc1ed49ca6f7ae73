"""Encode Arrow batches as an Arrow stream, a Parquet file or CSV, piece by piece."""

import io
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from trace_etl.query.sql.json_values import json_safe

_ROW_GROUP_ROWS = 122_880  # DuckDB's default, which readers work on in parallel
_ROW_GROUP_BYTES = 32 * 2**20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class _Sink(io.RawIOBase):
    """Collects what a writer writes, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class BatchEncoder:
    """Encodes batches with a writer of Arrow."""

    def __init__(self, schema: Any) -> None:
        self._sink = _Sink()
        self._writer = self._open(pa.PythonFile(self._sink, mode="w"), schema)

    def _open(self, output: Any, schema: Any) -> Any:
        raise NotImplementedError

    def _write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def encode(self, batch: Any) -> bytes | memoryview:
        """Return what can be sent after one more batch: nothing, if the writer holds it back."""
        self._write(batch)
        return self._sink.take()

    def finish(self) -> bytes:
        """Return the last piece, after which the result is complete."""
        self._writer.close()
        return self._sink.take()


class ArrowEncoder(BatchEncoder):
    """An Arrow IPC stream. It ends with a marker."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        # Only the writer knows which dictionaries it has sent. Without any, no batch is copied here.
        self._uses_writer = any(_contains_dictionary(field.type) for field in schema)
        self._start = b"" if self._uses_writer else bytes(schema.serialize())

    def _open(self, output: Any, schema: Any) -> Any:
        return ipc.new_stream(output, schema)

    def encode(self, batch: Any) -> bytes | memoryview:
        if self._uses_writer:
            return super().encode(batch)
        start, self._start = self._start, b""
        message = memoryview(batch.serialize())
        return start + bytes(message) if start else message

    def finish(self) -> bytes:
        return super().finish() if self._uses_writer else self._start + _END_OF_STREAM


class ParquetEncoder(BatchEncoder):
    """A Parquet file. It ends with its footer."""

    def __init__(self, schema: Any) -> None:
        self._held: list[Any] = []
        self._held_rows = self._held_bytes = 0
        super().__init__(schema)

    def _open(self, output: Any, schema: Any) -> Any:
        return pq.ParquetWriter(output, schema, compression="zstd")

    def _write(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= _ROW_GROUP_ROWS or self._held_bytes >= _ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        rows = pa.Table.from_batches(self._held)
        self._writer.write_table(rows, row_group_size=self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def finish(self) -> bytes:
        if self._held:
            self._write_row_group()
        return super().finish()


class CsvEncoder(BatchEncoder):
    """CSV with a header. Strings are quoted, so that an empty one differs from NULL."""

    def _open(self, output: Any, schema: Any) -> Any:
        self._schema = pa.schema([(f.name, pa.string() if _is_text(f) else f.type) for f in schema])
        return pc.CSVWriter(output, self._schema)

    def _write(self, batch: Any) -> None:
        columns = [
            _format_column(batch.column(number)) if _is_text(field) else batch.column(number)
            for number, field in enumerate(batch.schema)
        ]
        super()._write(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def _contains_dictionary(kind: Any) -> bool:
    if kinds.is_dictionary(kind):
        return True
    children = (kind.field(n).type for n in range(kind.num_fields))
    return any(_contains_dictionary(child) for child in children)


def _is_text(field: Any) -> bool:
    """Whether CSV shows a column as text that Arrow cannot write: bytes and nested values."""
    return kinds.is_nested(field.type) or kinds.is_binary(field.type)


def _format_column(column: Any) -> Any:
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    if kinds.is_binary(column.type):
        return pa.array([None if v is None else "0x" + v.hex() for v in values], pa.string())
    return pa.array(
        [None if v is None else orjson.dumps(json_safe(v)).decode() for v in values], pa.string()
    )
