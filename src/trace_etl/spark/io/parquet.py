"""One Parquet file, written by an executor: whole and under its name, or not at all."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trace_etl.spark.errors import StorageError, StorageFull, StorageUnwritable
from trace_etl.spark.io.encodings import smallest

ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 64 * 1024 * 1024  # wide rows must not gather without bound
_ARCHIVE_LEVEL = 6  # of zstd: twice the time of the usual one, and no gain on random hashes
_AMOUNTS = ("_string", "_f64")  # of a 256-bit number
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Written:
    """What a finished file holds."""

    name: str
    rows: int
    bytes: int


class ParquetFile:
    """Gathers batches into row groups of one size, so that the same rows give the same bytes."""

    def __init__(self, path: Path, schema: Any, *, attempt: int, is_archive: bool = False) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{attempt}")
        self._schema = schema
        self._is_archive = is_archive
        self._sink: Any = None
        self._writer: Any = None
        self._held: list[Any] = []
        self._held_rows = self._held_bytes = self._rows = 0

    def __enter__(self) -> "ParquetFile":
        try:
            self._open()
        except StorageError:
            self._abandon()
            raise
        return self

    def write(self, batch: Any) -> None:
        """Take a batch in. Raises StorageFull or StorageUnwritable, naming the path."""
        self._held.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush(final=self._held_bytes >= ROW_GROUP_BYTES)

    def finish(self) -> Written:
        """Close the file and give it its name."""
        self._flush(final=True)
        with named_errors(self._path):
            self._writer.close()
            self._sink.close()
            size = make_durable(self._draft)
            self._draft.rename(self._path)
        return Written(self._path.name, self._rows, size)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()

    def _open(self) -> None:
        with named_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = pa.OSFile(str(self._draft), "wb")

    def _begin(self, rows: Any) -> Any:
        """Start the file proper, now that its first rows are known."""
        settings: dict[str, Any] = {"use_dictionary": _repetitive(self._schema)}
        if self._is_archive:
            found = smallest(rows, level=_ARCHIVE_LEVEL)
            settings = {
                "compression_level": _ARCHIVE_LEVEL,
                "use_dictionary": list(found.dictionary),
                "column_encoding": dict(found.others) or None,
            }
        return pq.ParquetWriter(
            self._sink, self._schema, compression="zstd", store_schema=False, **settings
        )

    def _abandon(self) -> None:
        """Leave nothing behind; what made us give up is the error that counts."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write its footer when it is collected
        with suppress(OSError):
            if self._sink is not None:
                self._sink.close()
            self._draft.unlink(missing_ok=True)

    def _flush(self, *, final: bool) -> None:
        """Write what is held; unless final, keep the rows that do not fill a row group."""
        batches, self._held = self._held, []
        table = pa.Table.from_batches(batches, self._schema).combine_chunks()
        del batches  # combined is a copy: while it is written, the parts must not be held too
        whole = table.num_rows if final else table.num_rows - table.num_rows % ROW_GROUP_ROWS
        with named_errors(self._path):
            self._writer = self._writer or self._begin(table)
            if whole:
                self._writer.write_table(table.slice(0, whole), row_group_size=ROW_GROUP_ROWS)
        self._rows += whole
        rest = table.slice(whole)
        self._held, self._held_rows, self._held_bytes = (
            rest.to_batches(),
            rest.num_rows,
            rest.nbytes,
        )


def make_durable(path: Path) -> int:
    """Have the disk hold a file or directory before a commit points at it; tells its size."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


@contextmanager
def named_errors(path: Path) -> Generator[None]:
    """Turn the operating system's refusals into ours, naming the path."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        kind = StorageFull if error.errno in _FULL else StorageUnwritable
        raise kind(f"cannot write {path}: {reason}") from error


def _repetitive(schema: Any) -> list[str]:
    """Columns whose values repeat; a dictionary of hashes or of amounts only costs time."""
    return [
        field.name
        for field in schema
        if not pa.types.is_binary(field.type) and not field.name.endswith(_AMOUNTS)
    ]
