"""Read the result of a query as Arrow batches, while DuckDB computes it."""

from collections.abc import Iterator
from typing import Any, cast

import duckdb
import pyarrow as pa

from trace_etl.model.errors import Fault, Invalid

# DuckDB's own unit: with large values, a batch of several units would need much memory.
_VECTOR_ROWS = 2048
_MAX_BATCH_ROWS = 8 * _VECTOR_ROWS
_FIXED_WIDTH_ROWS = 16 * _VECTOR_ROWS
_MAX_BATCH_BYTES = 4 * 2**20
# An error in the middle of a result is only a text, which begins with its class.
_ERROR_CLASSES: dict[str, type[duckdb.Error]] = {
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "Permission Error": duckdb.PermissionException,
    "IO Error": duckdb.IOException,
    "HTTP Error": duckdb.IOException,
    "INTERNAL Error": duckdb.InternalException,
    "FATAL Error": duckdb.FatalException,
}


def read_batches(
    cursor: duckdb.DuckDBPyConnection, hugeints: list[int], *, has_fixed_width: bool = False
) -> tuple[Any, Iterator[Any]]:
    """Return the schema and the batches. They raise duckdb.Error, or Invalid for a value.

    `hugeints` are the columns whose values can exceed the 38 digits of an Arrow decimal. If all
    columns have a fixed width, DuckDB itself makes large batches.
    """
    rows = _FIXED_WIDTH_ROWS if has_fixed_width else _VECTOR_ROWS
    reader = cast(Any, cursor).to_arrow_reader(rows)  # DuckDB's types lack this method
    batches = _read(reader, hugeints)
    return reader.schema, batches if has_fixed_width else _join(batches)


def _read(reader: Any, hugeints: list[int]) -> Iterator[Any]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except OSError as error:
            raise _restore_error(str(error)) from error
        for number in hugeints:
            _check_digits(batch.schema.names[number], batch.column(number))
        yield batch


def _check_digits(name: str, column: Any) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        problem = f"a value of column {name!r} has more than 38 digits; cast it to VARCHAR"
        raise Invalid([Fault("sql", problem)]) from error


def _join(batches: Iterator[Any]) -> Iterator[Any]:
    """Join small batches: each has a price, for its sender and its reader."""
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MAX_BATCH_ROWS or size >= _MAX_BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _restore_error(message: str) -> duckdb.Error:
    kind = _ERROR_CLASSES.get(message.split(":", 1)[0], duckdb.Error)
    return kind(message)
