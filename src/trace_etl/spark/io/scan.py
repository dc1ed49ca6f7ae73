"""Files read by the executor itself, straight into Arrow, in the order of their blocks.

Through the JVM every row is unpacked and packed again: fine for SQL, wasted on work that takes
Arrow batches anyway.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import ge, gt, le
from typing import Any

import pyarrow.dataset as ds

_BATCH_ROWS = 50_000
_OPERATORS = {">=": ge, ">": gt, "<=": le}


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
    """Parquet files of one schema, and which of their rows are wanted."""

    paths: tuple[str, ...]
    schema: Any
    limits: tuple[Limit, ...] = ()

    def where(self, column: str, values: Sequence[Any]) -> "Scan":
        """Only rows whose column holds one of these."""
        return replace(self, limits=(*self.limits, Limit(column, "in", list(values))))

    def batches(self) -> Iterator[Any]:
        """The rows, file by file; row groups that cannot hold any are skipped.

        One row group is read while the one before is worked on. Arrow's own scanner reads as many
        as it has batches to give, which for wide rows is more than a worker may hold.
        """
        with ThreadPoolExecutor(1, "read-ahead") as ahead:
            reading: Future[Any] | None = None
            for piece in self._pieces():
                following = ahead.submit(self._read, piece)
                if reading is not None:
                    yield from reading.result().to_batches(max_chunksize=_BATCH_ROWS)
                reading = following
            if reading is not None:
                yield from reading.result().to_batches(max_chunksize=_BATCH_ROWS)

    def _pieces(self) -> Iterator[Any]:
        """Row groups that may hold wanted rows, in their order."""
        source = ds.dataset(list(self.paths), schema=self.schema, format="parquet")
        wanted = self._filter()
        for file in source.get_fragments(filter=wanted):
            yield from file.split_by_row_group(filter=wanted, schema=self.schema)

    def _read(self, piece: Any) -> Any:
        return piece.to_table(schema=self.schema, filter=self._filter())

    def _filter(self) -> Any:
        if not self.limits:
            return None
        return reduce(lambda one, other: one & other, [one.expression() for one in self.limits])
