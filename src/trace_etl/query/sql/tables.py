"""Let DuckDB scan tables of Postgres data, as Arrow datasets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds

from trace_etl.dag.column_types import RESERVED
from trace_etl.data.columns import arrow_schema
from trace_etl.data.snapshots import Snapshot
from trace_etl.data.table_reader import NOT_BETWEEN, Condition
from trace_etl.query.errors import QueryTooLarge
from trace_etl.query.sql.implied_conditions import BLOCK, find_values, may_match, narrow_block_range

_COMPARABLE = frozenset({"smallint", "integer", "bigint", "text", "bytea"})
"""Types of Postgres whose `=` is that of Arrow."""
_arrow: Any = ds  # pyarrow.dataset ships no types


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
        compared: Sequence[str] = (),
    ) -> None:
        _arrow.InMemoryDataset.__init__(self, schema.empty_table())
        self._snapshot, self._table, self._columns, self._budget = snapshot, table, schema, budget
        self._compared = compared
        self._skipped = [Condition(BLOCK, NOT_BETWEEN, blocks) for blocks in skipped_blocks]
        has_blocks = BLOCK in schema.names and kinds.is_integer(schema.field(BLOCK).type)
        self._block_range = snapshot.read_min_max(table, BLOCK) if has_blocks else (None, None)

    def scanner(self, *, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """Read the rows of one scan. Postgres filters by blocks and by values, then Arrow by everything."""
        wanted = (
            None if columns is None else set(columns) | _list_filter_columns(filter, self._columns)
        )
        names = [name for name in self._columns.names if wanted is None or name in wanted]
        schema = pa.schema([self._columns.field(name) for name in names or self._columns.names[:1]])
        return _arrow.Scanner.from_batches(
            self._read(schema, self._list_conditions(filter)),
            schema=schema,
            columns=columns,
            filter=filter,
        )

    def _list_conditions(self, row_filter: Any) -> list[Condition]:
        return [*self._limit_blocks(row_filter), *self._limit_values(row_filter), *self._skipped]

    def _limit_values(self, row_filter: Any) -> Iterator[Condition]:
        """Yield the values to which a filter restricts columns. Each scan has a filter of its own."""
        for column in self._compared if row_filter is not None else ():
            values = find_values(row_filter, self._columns, column)
            if values:
                yield Condition(column, "IN", values)

    def _limit_blocks(self, row_filter: Any) -> list[Condition]:
        first, last = self._block_range
        if row_filter is None or first is None or last is None:
            return []
        if may_match(row_filter, self._columns, _arrow.field(BLOCK).is_null()):
            return []  # a range of blocks would exclude rows without a block
        span = narrow_block_range(row_filter, self._columns, first, last)
        if span is None:  # no row can match: select none
            return [Condition(BLOCK, "<", first)]
        return [Condition(BLOCK, ">=", span[0]), Condition(BLOCK, "<=", span[1])]

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
    compared = [name for name, kind in columns if kind in _COMPARABLE and name != BLOCK]
    return TableDataset(snapshot, table, arrow_schema(columns), budget, skipped_blocks, compared)
