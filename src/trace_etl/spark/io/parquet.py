"""One Parquet file, written by an executor."""

import hashlib
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trace_etl.objects.store import ObjectStore, ObjectWriter
from trace_etl.proof.content_hash import ContentHash, RowHasher
from trace_etl.proof.row_encoding import UnknownType
from trace_etl.spark.io.encodings import choose_encodings
from trace_etl.spark.io.scan import find_columns_of_file

ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 64 * 1024 * 1024  # limits the memory that wide rows take
_ARCHIVE_LEVEL = 6  # of zstd: takes twice the time of the default, and gains nothing on hashes
_AMOUNTS = ("_string", "_f64")  # suffixes of the columns of a 256-bit number
# Columns that queries compare with constants. They have dictionaries, not Bloom filters: DuckDB 1.5 hashes the
# text of a BLOB constant instead of its bytes, so it would skip row groups with matching rows.
_SEARCHED = ("address", "topic0")
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class WrittenFile:
    """The name, the size and the hashes of a finished file."""

    name: str
    rows: int
    bytes: int
    sha256: str | None = None
    """SHA-256 of the bytes of the file, as hexadecimal text."""
    row_sums: Sequence[Mapping[str, Any]] | None = None
    """The columns and row sum of the rows from each kind of file, if rows of files with fewer columns were
    copied. See `RowSumOfColumns`.
    """
    content: ContentHash | None = None
    """Hashes of its rows. None: the file is a text, or a column has a type without a canonical encoding."""


@contextmanager
def open_parquet_file(
    store: ObjectStore,
    key: str,
    schema: Any,
    *,
    attempt: int = 0,
    is_archive: bool = False,
    sorted_by: Sequence[str] = (),
) -> Generator["ParquetFile"]:
    """Write a Parquet file; discard it unless it is finished."""
    with store.open_writer(key, attempt=attempt) as output:
        file = ParquetFile(output, schema, is_archive=is_archive, sorted_by=sorted_by)
        try:
            yield file
        except BaseException:
            file.discard()
            raise


class ParquetFile:
    """Gathers batches into row groups of one size, so that equal rows give equal bytes."""

    def __init__(
        self, output: ObjectWriter, schema: Any, *, is_archive: bool, sorted_by: Sequence[str] = ()
    ) -> None:
        self._output = output
        self._stream = HashingStream(output.stream)
        self._schema = add_field_ids(schema)
        self._is_archive = is_archive
        self._sorted_by = sorted_by
        self._hasher = _open_hasher(schema)
        self._narrow = _NarrowRows(schema)
        self._writer: Any = None
        self._held: list[Any] = []
        self._held_rows = self._held_bytes = self._rows = 0

    def write(self, batch: Any) -> None:
        """Write a batch, now or with later ones. Raises StorageFull or StorageUnwritable."""
        if self._hasher is not None:
            self._hasher.add(batch)
            self._narrow.add(batch)
        self._held.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush(final=self._held_bytes >= ROW_GROUP_BYTES)

    def finish(self) -> WrittenFile:
        """Write the footer and commit the file under its key."""
        self._flush(final=True)
        with self._output.errors():
            self._writer.close()
        content = self._hasher.finish() if self._hasher is not None else None
        size = self._output.commit()
        row_sums = self._narrow.split(content) if content is not None else None
        return WrittenFile(
            self._output.name, self._rows, size, self._stream.sha256, row_sums, content
        )

    def discard(self) -> None:
        """Keep pyarrow from writing a footer when the writer is garbage-collected."""
        if self._writer is not None:
            self._writer.is_open = False

    def _open_writer(self, rows: Any) -> Any:
        """Choose encodings by the first rows and start the file."""
        settings: dict[str, Any] = {"use_dictionary": _list_repetitive_columns(self._schema)}
        if self._is_archive:
            encodings = choose_encodings(rows, level=_ARCHIVE_LEVEL)
            settings = {
                "compression_level": _ARCHIVE_LEVEL,
                "use_dictionary": list(encodings.dictionary),
                "column_encoding": dict(encodings.others) or None,
            }
        return pq.ParquetWriter(
            self._stream.file,
            self._schema,
            compression="zstd",
            store_schema=False,
            write_page_index=True,
            sorting_columns=self._list_sorting_columns(),
            **settings,
        )

    def _list_sorting_columns(self) -> Any:
        names = self._schema.names
        columns = [
            pq.SortingColumn(names.index(name), nulls_first=True) for name in self._sorted_by
        ]
        return columns or None

    def _flush(self, *, final: bool) -> None:
        """Write the held rows; unless final, keep those that do not fill a row group."""
        batches, self._held = self._held, []
        table = pa.Table.from_batches(batches, self._schema).combine_chunks()
        del batches  # the combined table is a copy: free the parts before it is written
        row_count = table.num_rows if final else table.num_rows - table.num_rows % ROW_GROUP_ROWS
        with self._output.errors():
            self._writer = self._writer or self._open_writer(table)
            if row_count:
                self._writer.write_table(table.slice(0, row_count), row_group_size=ROW_GROUP_ROWS)
        self._rows += row_count
        rest = table.slice(row_count)
        self._held, self._held_rows, self._held_bytes = (
            rest.to_batches(),
            rest.num_rows,
            rest.nbytes,
        )


class _NarrowRows:
    """Hashes rows of files that lack columns once more without these, as the files' certificates do."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._wide: RowHasher | None = None
        """All columns of these rows."""
        self._by_columns: dict[tuple[str, ...], RowHasher] = {}

    def add(self, batch: Any) -> None:
        names = find_columns_of_file(batch)
        missing = set(self._schema.names) - set(names or self._schema.names)
        if names is None or any(batch.column(n).null_count < len(batch) for n in missing):
            return  # a value in a column that the file lacks changes the row sum
        part = batch.select(names)
        if self._wide is None:
            self._wide = RowHasher(self._schema)
        self._wide.add(batch)
        hasher = self._by_columns.setdefault(tuple(names), RowHasher(part.schema))
        hasher.add(part)

    def split(self, whole: ContentHash) -> list[dict[str, Any]] | None:
        """Return the row sum of the rows from each kind of file; None if all have all columns."""
        if self._wide is None:
            return None
        rest = (int(whole.row_sum, 16) - int(self._wide.finish().row_sum, 16)) % 2**256
        sums = [{"columns": list(self._schema.names), "row_sum": f"{rest:064x}"}]
        for names, hasher in self._by_columns.items():
            sums.append({"columns": list(names), "row_sum": hasher.finish().row_sum})
        return sums


class HashingStream:
    """Passes bytes on to an Arrow stream and hashes them, so that no file is read twice."""

    closed = False

    def __init__(self, target: Any) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self.file = pa.PythonFile(self, mode="w")

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        self._target.write(content)
        return len(content)

    def flush(self) -> None:
        """The target is flushed when its writer commits it."""

    def close(self) -> None:
        """Leave the target open: its writer closes it."""


def _open_hasher(schema: Any) -> RowHasher | None:
    try:
        return RowHasher(schema)
    except UnknownType:
        return None


def add_field_ids(schema: Any) -> Any:
    """Return the schema with an id for each column that depends on its name only.

    Table formats find columns by these ids. Files of all partitions and generations have equal ids,
    in whatever order and with whichever other columns they are written.
    """
    taken: set[int] = set()
    fields: list[Any] = []
    for field in schema:
        number = zlib.crc32(field.name.encode()) & 0x7FFFFFFF
        while number in taken or not number:
            number = (number + 1) & 0x7FFFFFFF
        taken.add(number)
        fields.append(field.with_metadata({_FIELD_ID: str(number).encode()}))
    return pa.schema(fields)


def _list_repetitive_columns(schema: Any) -> list[str]:
    """Columns whose values repeat. A dictionary of hashes or amounts only costs time."""
    return [
        field.name
        for field in schema
        if field.name in _SEARCHED
        or (not pa.types.is_binary(field.type) and not field.name.endswith(_AMOUNTS))
    ]
