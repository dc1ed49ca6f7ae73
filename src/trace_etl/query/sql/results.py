"""Encode the result of a query while it is computed, in pieces of limited size."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import duckdb
import orjson

from trace_etl.model.errors import Fault, Invalid
from trace_etl.model.result_formats import ResultFormat
from trace_etl.query.requests import DatasetView, FilePart, QueryLimits
from trace_etl.query.sql.arrow_encoders import (
    ArrowEncoder,
    BatchEncoder,
    CsvEncoder,
    ParquetEncoder,
)
from trace_etl.query.sql.arrow_results import read_batches
from trace_etl.query.sql.json_values import json_safe
from trace_etl.query.sql.quoting import quote_name
from trace_etl.query.sql.stored_columns import encode_files, find_files, may_send

_FETCH_ROWS = 200
# A result below this size is one piece: an error while it is computed can still be an HTTP error.
_MIN_PIECE = 256 * 1024
_ENCODERS: dict[ResultFormat, type[BatchEncoder]] = {
    ResultFormat.ARROW: ArrowEncoder,
    ResultFormat.PARQUET: ParquetEncoder,
    ResultFormat.CSV: CsvEncoder,
    ResultFormat.COLUMNS: ArrowEncoder,
}
# Arrow has no equivalent, and DuckDB would send other values or bytes of its own.
_NOT_IN_ARROW = frozenset({"bignum", "bit", "time with time zone", "uhugeint"})
_FIXED_WIDTH = frozenset(
    {"boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
    | {"ubigint", "hugeint", "float", "double", "decimal", "date", "time", "timestamp"}
    | {"timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"}
)
_NOT_IN_FILES = _NOT_IN_ARROW | {"interval", "union"}


Piece = bytes | memoryview | FilePart
"""A piece of an encoded result."""


@dataclass
class ResultSummary:
    """The columns of a result, and what was sent of it so far."""

    columns: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    row_count: int = 0
    truncated: bool = False


def encode_result(
    cursor: duckdb.DuckDBPyConnection,
    form: ResultFormat,
    limits: QueryLimits,
    summary: ResultSummary,
) -> Iterator[Piece]:
    """Yield the encoded result. JSON is the rows only, separated by commas. Raises Invalid."""
    description = cursor.description or []
    summary.columns = describe(description)
    if form is ResultFormat.JSON:
        return _join_pieces(_encode_rows(cursor, limits, summary))
    _check_types(form, description)
    has_fixed_width = all(d[1].id in _FIXED_WIDTH for d in description)
    schema, batches = read_batches(
        cursor, _list_hugeints(description), has_fixed_width=has_fixed_width
    )
    encoder = _ENCODERS[form](schema)
    return _join_pieces(_encode_batches(encoder, _limit_rows(batches, limits.rows, summary)))


def describe(description: list[Any]) -> list[dict[str, str]]:
    """Return the names and DuckDB types of the columns of a cursor."""
    return [{"name": d[0], "type": str(d[1])} for d in description]


def encode_stored_columns(
    engine: duckdb.DuckDBPyConnection,
    view: DatasetView,
    columns: tuple[str, ...],
    summary: ResultSummary,
) -> Iterator[Piece] | None:
    """Return a stream of columns as they are stored; None if the files do not hold exactly the result.

    Empty `columns` mean all columns. Raises OSError or ArrowInvalid for a file that cannot be read.
    """
    if not may_send(view):
        return None
    chosen = ", ".join(map(quote_name, columns)) or "*"
    cursor = engine.execute(f"SELECT {chosen} FROM {quote_name(view.name)} LIMIT 0")  # noqa: S608
    names = tuple(d[0] for d in cursor.description or [])
    if columns and names != columns:
        return None
    schema: Any = cast(Any, cursor).to_arrow_reader().schema
    files = find_files(view, schema, has_all_columns=not columns)
    if files is None:
        return None
    summary.columns = describe(cursor.description or [])
    summary.row_count = sum(file.rows for file in files)
    return _join_pieces(encode_files(schema, files))


def _join_pieces(pieces: Iterator[Piece]) -> Iterator[Piece]:
    held: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, FilePart):
            if size:
                yield b"".join(held)
                held, size = [], 0
            yield piece
            continue
        held.append(piece)
        size += len(piece)
        if size >= _MIN_PIECE:
            yield piece if len(piece) == size else b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)


def _encode_batches(encoder: BatchEncoder, batches: Iterator[Any]) -> Iterator[Piece]:
    for batch in batches:
        yield encoder.encode(batch)
    yield encoder.finish()


def _encode_rows(
    cursor: duckdb.DuckDBPyConnection, limits: QueryLimits, summary: ResultSummary
) -> Iterator[bytes]:
    size = 0
    while rows := cursor.fetchmany(_FETCH_ROWS):
        encoded: list[bytes] = []
        for row in rows:
            text = orjson.dumps([json_safe(value) for value in row])
            size += len(text) + 1
            if summary.row_count == limits.rows or size > (limits.bytes or size):
                summary.truncated = True
                break
            encoded.append(text)
            summary.row_count += 1
        if encoded:
            is_first = summary.row_count == len(encoded)
            yield (b"" if is_first else b",") + b",".join(encoded)
        if summary.truncated:
            return


def _limit_rows(
    batches: Iterator[Any], max_rows: int | None, summary: ResultSummary
) -> Iterator[Any]:
    for batch in batches:
        left = batch.num_rows if max_rows is None else max_rows - summary.row_count
        summary.truncated = batch.num_rows > left
        kept = batch.slice(0, left)
        if kept.num_rows:
            summary.row_count += kept.num_rows
            yield kept
        if summary.truncated:
            return


def _check_types(form: ResultFormat, description: list[Any]) -> None:
    is_arrow = form in (ResultFormat.ARROW, ResultFormat.COLUMNS)
    refused = _NOT_IN_ARROW if is_arrow else _NOT_IN_FILES
    faults = [
        Fault("sql", f"column {d[0]!r} is {d[1]}, which {form} cannot hold; cast it to VARCHAR")
        for d in description
        if _contains(d[1], refused)
    ]
    if faults:
        raise Invalid(faults)


def _contains(kind: Any, types: frozenset[str]) -> bool:
    """Whether a DuckDB type, or a type inside it, is one of `types`."""
    if kind.id in types:
        return True
    children: list[Any] = (
        kind.children if kind.id in ("array", "list", "map", "struct", "union") else []
    )
    return any(_contains(child, types) for _, child in children if hasattr(child, "id"))


def _list_hugeints(description: list[Any]) -> list[int]:
    huge = frozenset({"hugeint"})
    return [number for number, d in enumerate(description) if _contains(d[1], huge)]
