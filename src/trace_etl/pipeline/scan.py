"""Files read by the executor itself, straight into Arrow, in the order of their blocks.

Through the JVM every row is unpacked and packed again: fine for SQL, wasted on work that takes
Arrow batches anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import ge, gt, le
from typing import Any

import pyarrow.dataset as ds

_BATCH_ROWS = 50_000
_AHEAD = 2  # batches, and files: what is read ahead is held in memory
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
        """The rows, file by file; row groups that cannot hold any are skipped."""
        source = ds.dataset(list(self.paths), schema=self.schema, format="parquet")
        yield from source.to_batches(
            filter=self._filter(),
            batch_size=_BATCH_ROWS,
            batch_readahead=_AHEAD,
            fragment_readahead=_AHEAD,
        )

    def _filter(self) -> Any:
        if not self.limits:
            return None
        return reduce(lambda one, other: one & other, [one.expression() for one in self.limits])
