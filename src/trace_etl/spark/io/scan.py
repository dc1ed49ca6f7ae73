"""Parquet files that an executor reads itself, straight into Arrow, in the order of their blocks.

Reading through the JVM would convert every row twice, and the readers of scans work on Arrow batches.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import eq, ge, gt, le, lt
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds

from trace_etl.objects.store import ObjectStore

_BATCH_ROWS = 50_000
_OF_FILE = b"trace:columns"  # in the metadata of batches: the columns of a file that lacks some
_OPERATORS = {"=": eq, ">=": ge, ">": gt, "<=": le, "<": lt}


@dataclass(frozen=True)
class Limit:
    """One condition on a column; `in` takes a list."""

    column: str
    operator: str
    value: Any

    def expression(self) -> Any:
        if self.operator == "in":
            return ds.field(self.column).isin(self.value)
        return _OPERATORS[self.operator](ds.field(self.column), self.value)


@dataclass(frozen=True)
class Scan:
    """Parquet files of one schema, and conditions on their rows."""

    store: ObjectStore
    keys: tuple[str, ...]
    schema: Any
    limits: tuple[Limit, ...] = ()
    columns: frozenset[str] | None = None
    """The columns to read; the others are null. None: all."""
    name: str = field(default_factory=lambda: f"objects_{uuid4().hex}")
    """The name of the data source that reads it."""

    def where(self, column: str, values: Sequence[Any]) -> "Scan":
        """Keep only rows whose column has one of these values."""
        return self.limit(Limit(column, "in", list(values)))

    def limit(self, limit: Limit) -> "Scan":
        """Keep only rows that meet one more condition."""
        return replace(self, limits=(*self.limits, limit))

    def select(self, columns: frozenset[str]) -> "Scan":
        """Read only some of the columns."""
        return Scan(self.store, self.keys, self.schema, self.limits, columns)

    def only(self, key: str) -> "Scan":
        """Read only one of the files."""
        return replace(self, keys=(key,))

    def batches(self) -> Iterator[Any]:
        """Read the rows, file by file; skip row groups whose statistics exclude them.

        One row group is read while the previous one is processed. Arrow's own scanner reads many
        ahead, which for wide rows takes more memory than a worker has.
        """
        with ThreadPoolExecutor(1, "read-ahead") as ahead:
            reading: Future[Any] | None = None
            condition = self._make_filter()
            for group in self._list_row_groups():
                following = ahead.submit(self._read_group, group, condition)
                if reading is not None:
                    yield from reading.result().to_batches(max_chunksize=_BATCH_ROWS)
                reading = following
            if reading is not None:
                yield from reading.result().to_batches(max_chunksize=_BATCH_ROWS)

    def _read_group(self, group: Any, condition: Any) -> Any:
        if self.columns is None:
            return _note_columns(group, group.to_table(schema=self.schema, filter=condition))
        chosen = [name for name in self.schema.names if name in self.columns]
        table = group.to_table(schema=self.schema, filter=condition, columns=chosen)
        return pa.table(
            [
                table[field.name]
                if field.name in self.columns
                else pa.nulls(len(table), field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )

    def _list_row_groups(self) -> Iterator[Any]:
        """Yield the row groups that may have matching rows, in order."""
        parquet, condition = ds.ParquetFileFormat(), self._make_filter()
        for key in self.keys:
            file = parquet.make_fragment(self.store.open_input(key))
            yield from file.split_by_row_group(filter=condition, schema=self.schema)

    def _make_filter(self) -> Any:
        if not self.limits:
            return None
        return reduce(
            lambda left, right: left & right, [limit.expression() for limit in self.limits]
        )


def _note_columns(group: Any, rows: Any) -> Any:
    """Record the columns of the file if it lacks columns of the schema, which are null in its rows."""
    present = set(group.physical_schema.names)
    names = [name for name in rows.schema.names if name in present]
    if len(names) == len(rows.schema.names):
        return rows
    return rows.replace_schema_metadata({_OF_FILE: json.dumps(names).encode()})


def find_columns_of_file(batch: Any) -> list[str] | None:
    """Return the columns that the file of a batch has; None if it has all."""
    metadata: dict[bytes, bytes] = batch.schema.metadata or {}
    noted = metadata.get(_OF_FILE)
    return None if noted is None else json.loads(noted)
