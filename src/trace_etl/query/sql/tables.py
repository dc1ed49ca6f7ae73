"""Let DuckDB scan tables of Postgres data, as Arrow datasets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds
from pyarrow.fs import LocalFileSystem

from trace_etl.dag.buffered_datasets import RESERVED
from trace_etl.data.columns import arrow_schema
from trace_etl.data.snapshots import Snapshot
from trace_etl.data.table_reader import NOT_BETWEEN, Condition
from trace_etl.query.errors import QueryTooLarge

_BLOCK = "block_number"
_arrow: Any = ds  # pyarrow.dataset ships no types
_FORMAT, _FILES = _arrow.ParquetFileFormat(), LocalFileSystem()


@dataclass
class ReadBudget:
    """The bytes that all scans of one query may read together, and the first error of a scan.

    DuckDB passes on only the text of a scan's error, so the error itself is stored here.
    """

    max_bytes: int
    bytes_read: int = 0
    failure: Exception | None = None
    scans: list[str] = field(default_factory=list[str])
    """The scans that were sent to Postgres, as text."""

    def spend(self, size: int) -> None:
        """Count bytes that were read. Raises QueryTooLarge above the maximum."""
        self.bytes_read += size
        if self.bytes_read > self.max_bytes:
            size_limit = f"{self.max_bytes / 2**20:g} MiB"
            raise QueryTooLarge.of(f"reads more than {size_limit} of tables in Postgres data")


class TableDataset(_arrow.InMemoryDataset):
    """A table as an Arrow dataset. DuckDB calls `scanner` with the columns and filter it needs."""

    def __init__(
        self,
        snapshot: Snapshot,
        table: str,
        schema: Any,
        budget: ReadBudget,
        skipped_blocks: Sequence[tuple[int, int]] = (),
    ) -> None:
        _arrow.InMemoryDataset.__init__(self, schema.empty_table())
        self._snapshot, self._table, self._columns, self._budget = snapshot, table, schema, budget
        self._skipped = [Condition(_BLOCK, NOT_BETWEEN, blocks) for blocks in skipped_blocks]
        has_blocks = _BLOCK in schema.names and kinds.is_integer(schema.field(_BLOCK).type)
        self._block_range = snapshot.read_min_max(table, _BLOCK) if has_blocks else (None, None)

    def scanner(self, *, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """Read the rows of one scan. Postgres filters by block, Arrow by everything else."""
        wanted = (
            None if columns is None else set(columns) | _list_filter_columns(filter, self._columns)
        )
        names = [name for name in self._columns.names if wanted is None or name in wanted]
        schema = pa.schema([self._columns.field(name) for name in names or self._columns.names[:1]])
        return _arrow.Scanner.from_batches(
            self._read(schema, self._make_conditions(filter) + self._skipped),
            schema=schema,
            columns=columns,
            filter=filter,
        )

    def _make_conditions(self, row_filter: Any) -> list[Condition]:
        first, last = self._block_range
        if row_filter is None or first is None or last is None:
            return []
        if _may_match(row_filter, self._columns, _arrow.field(_BLOCK).is_null()):
            return []  # a range of blocks would exclude rows without a block
        span = narrow_block_range(row_filter, self._columns, first, last)
        if span is None:  # no row can match: select none
            return [Condition(_BLOCK, "<", first)]
        return [Condition(_BLOCK, ">=", span[0]), Condition(_BLOCK, "<=", span[1])]

    def _read(self, schema: Any, conditions: list[Condition]) -> Iterator[Any]:
        where = " AND ".join(f"{c.column} {c.operator} {c.value}" for c in conditions)
        self._budget.scans.append(f"{','.join(schema.names)} WHERE {where or 'true'}")
        try:
            for batch in self._snapshot.read_batches(self._table, schema, conditions):
                self._budget.spend(batch.nbytes)
                yield batch
        except Exception as error:
            self._budget.failure = self._budget.failure or error
            raise


def _list_filter_columns(row_filter: Any, schema: Any) -> set[str]:
    """List at least the columns that a filter uses: those whose names occur in its text."""
    if row_filter is None:
        return set()
    text = str(row_filter)
    return {name for name in schema.names if name in text}


def open_table(
    snapshot: Snapshot,
    table: str,
    budget: ReadBudget,
    skipped_blocks: Sequence[tuple[int, int]] = (),
) -> TableDataset | None:
    """Return a table without the platform's own columns and the skipped blocks; None if it does not exist."""
    columns = [column for column in snapshot.list_columns(table) if column[0] not in RESERVED]
    if not columns:
        return None
    return TableDataset(snapshot, table, arrow_schema(columns), budget, skipped_blocks)


def narrow_block_range(
    row_filter: Any, schema: Any, first: int, last: int
) -> tuple[int, int] | None:
    """Return the smallest range with all blocks that a filter can match; None if it matches none.

    Arrow decides whether a filter can match within a range, so this works for any filter.
    """
    if not _may_match(row_filter, schema, _make_range_condition(first, last)):
        return None
    low, high = first, last
    while low < high:  # search the first block that may match
        middle = (low + high) // 2
        found = _may_match(row_filter, schema, _make_range_condition(first, middle))
        low, high = (low, middle) if found else (middle + 1, high)
    start, high = low, last
    while low < high:  # search the last block that may match
        middle = (low + high + 1) // 2
        found = _may_match(row_filter, schema, _make_range_condition(middle, last))
        low, high = (middle, high) if found else (low, middle - 1)
    return start, low


def _make_range_condition(first: int, last: int) -> Any:
    block = _arrow.field(_BLOCK)
    return (block >= first) & (block <= last)


def _may_match(row_filter: Any, schema: Any, known: Any) -> bool:
    """Whether rows that satisfy `known` can match a filter. Arrow opens no file to decide it."""
    piece = _FORMAT.make_fragment("nowhere", filesystem=_FILES, partition_expression=known)
    whole = _arrow.FileSystemDataset([piece], schema, _FORMAT, filesystem=_FILES)
    return any(True for _ in whole.get_fragments(filter=row_filter))
