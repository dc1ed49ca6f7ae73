"""Datasets whose rows are in tables of Postgres data, as DuckDB reads them: scan by scan."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds
from pyarrow.fs import LocalFileSystem

from trace_etl.dag.buffered_datasets import RESERVED
from trace_etl.data.columns import arrow_schema
from trace_etl.data.hot_reading import Condition
from trace_etl.data.snapshots import Snapshot
from trace_etl.query.errors import TablesTooLarge

_BLOCK = "block_number"
_arrow: Any = ds  # it ships no types
_FORMAT, _FILES = _arrow.ParquetFileFormat(), LocalFileSystem()


@dataclass
class Budget:
    """What one query may read, over all its scans; and what went wrong in one of them.

    Errors of a scan come back from DuckDB as words only: the error itself is kept here.
    """

    left: int
    most: int
    failure: Exception | None = None
    is_stopped: bool = False
    scans: list[str] = field(default_factory=list[str])
    """What was asked of Postgres."""

    def take(self, size: int) -> None:
        """Raises TablesTooLarge when nothing is left."""
        self.left -= size
        if self.left < 0:
            raise TablesTooLarge(self.most)


class TableDataset(_arrow.InMemoryDataset):
    """A table that DuckDB takes for a dataset of Arrow's: it asks for columns and rows of it."""

    def __init__(self, snapshot: Snapshot, table: str, schema: Any, budget: Budget) -> None:
        _arrow.InMemoryDataset.__init__(self, schema.empty_table())
        self._snapshot, self._table, self._shape, self._budget = snapshot, table, schema, budget
        counted = _BLOCK in schema.names and kinds.is_integer(schema.field(_BLOCK).type)
        self._ends = snapshot.ends(table, _BLOCK) if counted else (None, None)

    def scanner(self, *, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """The rows of one scan. Blocks are chosen by Postgres; Arrow does the rest."""
        wanted = None if columns is None else set(columns) | _fields(filter, self._shape)
        names = [name for name in self._shape.names if wanted is None or name in wanted]
        schema = pa.schema([self._shape.field(name) for name in names or self._shape.names[:1]])
        return _arrow.Scanner.from_batches(
            self._read(schema, self._limits(filter)), schema=schema, columns=columns, filter=filter
        )

    def _limits(self, chosen: Any) -> list[Condition]:
        first, last = self._ends
        if chosen is None or first is None or last is None or self._may_lack_one(chosen):
            return []  # rows without a block are outside of every range
        span = narrowed(chosen, self._shape, first, last)
        if span is None:  # no row can match, and none is asked for
            return [Condition(_BLOCK, "<", first)]
        return [Condition(_BLOCK, ">=", span[0]), Condition(_BLOCK, "<=", span[1])]

    def _may_lack_one(self, chosen: Any) -> bool:
        return _may_match(chosen, self._shape, _arrow.field(_BLOCK).is_null())

    def _read(self, schema: Any, limits: list[Condition]) -> Iterator[Any]:
        asked = " AND ".join(f"{one.column} {one.operator} {one.value}" for one in limits)
        self._budget.scans.append(f"{','.join(schema.names)} WHERE {asked or 'true'}")
        try:
            for batch in self._snapshot.batches(self._table, schema, limits):
                if self._budget.is_stopped:
                    return
                self._budget.take(batch.nbytes)
                yield batch
        except Exception as error:
            self._budget.failure = self._budget.failure or error
            raise


def _fields(chosen: Any, schema: Any) -> set[str]:
    """Columns that a filter may look at: at least those it does, by its text."""
    if chosen is None:
        return set()
    text = str(chosen)
    return {name for name in schema.names if name in text}


def dataset(snapshot: Snapshot, table: str, budget: Budget) -> TableDataset | None:
    """A table as DuckDB takes it; None if there is none. Columns of our own are not shown."""
    shape = [(name, kind) for name, kind in snapshot.shape(table) if name not in RESERVED]
    return TableDataset(snapshot, table, arrow_schema(shape), budget) if shape else None


def narrowed(chosen: Any, schema: Any, first: int, last: int) -> tuple[int, int] | None:
    """The least range of blocks with all that a filter can match; None: it matches none.

    Arrow itself judges whether a filter can hold within a range, so any filter will do.
    """
    if not _may_match(chosen, schema, _between(first, last)):
        return None
    low, high = first, last
    while low < high:  # the first block up to which something may match
        middle = (low + high) // 2
        found = _may_match(chosen, schema, _between(first, middle))
        low, high = (low, middle) if found else (middle + 1, high)
    start, high = low, last
    while low < high:  # the last block from which on something may match
        middle = (low + high + 1) // 2
        found = _may_match(chosen, schema, _between(middle, last))
        low, high = (middle, high) if found else (low, middle - 1)
    return start, low


def _between(first: int, last: int) -> Any:
    block = _arrow.field(_BLOCK)
    return (block >= first) & (block <= last)


def _may_match(chosen: Any, schema: Any, known: Any) -> bool:
    """Whether rows of which something is known can pass a filter; it opens no file for that."""
    piece = _FORMAT.make_fragment("nowhere", filesystem=_FILES, partition_expression=known)
    whole = _arrow.FileSystemDataset([piece], schema, _FORMAT, filesystem=_FILES)
    return any(True for _ in whole.get_fragments(filter=chosen))
