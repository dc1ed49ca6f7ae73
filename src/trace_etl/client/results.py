"""The result of a query as Arrow, polars, pandas or Python rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trace_etl.client.packages import import_package
from trace_etl.client.stack_client import StackClient

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs] - it ships none
    import polars
    import pyarrow as pa


Params = Mapping[str, Any] | Sequence[Any] | None


def _join(schema: Any, pieces: Iterator[Any]) -> "pa.Table":
    """Return tables or record batches as one table, without copying them."""
    import pyarrow as pa

    found = list(pieces)
    if found and isinstance(found[0], pa.Table):
        return pa.concat_tables(found)
    return pa.Table.from_batches(found, schema=schema)


class QueryResult:
    """A query that runs when its rows are asked for.

    `arrow`, `polars`, `pandas` and `rows` fetch the whole result once and keep it. `batches` reads
    the result piece by piece and keeps nothing: it runs the query each time.
    """

    def __init__(self, stack: StackClient, sql: str, params: Params) -> None:
        self._stack, self._sql, self._params = stack, sql, params
        self._table: pa.Table | None = None
        self._pinned: list[dict[str, Any]] = []

    @property
    def pinned(self) -> list[dict[str, Any]]:
        """The dataset generations that the last run read, and their numbers of partitions."""
        return self._pinned

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Run the query and yield record batches while it runs. The query stops with the iterator.

        Raises RequestRejected, NotRunning, or ResultIncomplete in the middle of the result.
        """
        with self._stack.stream(self._sql, format="columns", params=self._params) as body:
            self._pinned = body.pinned
            for piece in body.open_columns()[1]:
                yield from piece.to_batches() if hasattr(piece, "to_batches") else (piece,)
            body.finish()

    def arrow(self) -> "pa.Table":
        """Return the result as an Arrow table."""
        import pyarrow as pa

        if self._table is None:
            with self._stack.stream(self._sql, format="columns", params=self._params) as body:
                self._pinned = body.pinned
                schema, pieces = body.open_columns()
                self._table = _join(schema, pieces)
                body.finish()
        assert isinstance(self._table, pa.Table)
        return self._table

    def polars(self) -> "polars.DataFrame":
        """Return the result as a polars frame. Needs the extra `polars`."""
        frame = import_package("polars").from_arrow(self.arrow())
        return frame

    def pandas(self) -> "pandas.DataFrame":
        """Return the result as a pandas frame. Needs the extra `pandas`."""
        import_package("pandas")
        return self.arrow().to_pandas()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dicts of Python values, by column name."""
        return self.arrow().to_pylist()
