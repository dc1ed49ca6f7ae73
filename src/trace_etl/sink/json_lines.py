"""Read a batch of JSON lines: one JSON object per line.

Arrow's parser reads ordinary batches. It reports no line numbers and accepts a little more than JSON
allows. So a batch that it refuses, or that needs a closer look, is read again line by line.
"""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from trace_etl.api.task.buffers import MAX_BATCH_ROWS, BufferBatch, BufferColumn
from trace_etl.dag.column_types import TIMESTAMP_FORM, FullType, parse_type
from trace_etl.data.columns import full_arrow_type
from trace_etl.sink.errors import BadBatch

CONTENT_TYPES = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines")
ORG = "org_id"
_BLOCK_BYTES = 4 * 1024 * 1024
_PARSED_BY_ARROW = ("boolean", "int", "long", "double", "decimal", "string", "timestamp", "date")
_TIMESTAMPS, _DATES = f"^{TIMESTAMP_FORM}$", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
# A NUL, which Postgres cannot store in a text.
_NEEDS_A_CLOSER_LOOK = re.compile(rb"\\u0000")
_SPACE = re.compile(r"[ \t\r]*")
_compute: Any = pc  # the functions of pyarrow.compute have no types
_arrow_json: Any = pj


def read_table(content: bytes, batch: BufferBatch) -> Any:
    """Parse the lines into a table of the declared columns, and `org_id` if given. Raises BadBatch."""
    columns = [(column, _choose_full_type(column)) for column in batch.columns or ()]
    if content.startswith(b"\xef\xbb\xbf"):
        raise BadBatch("line 1 starts with a byte order mark; write UTF-8 without it")
    table = _read_fast(content, columns)
    return _read_lines(content, columns) if table is None else table


def _choose_full_type(column: BufferColumn) -> FullType:
    full = parse_type(column.type)
    if full is None or full.kind.parse_json is None:
        raise BadBatch(
            f"{column.name!r}: a buffered dataset cannot have a column of type {column.type}"
        )
    return full


# --- with Arrow's parser ------------------------------------------------------------------------


def _read_fast(content: bytes, columns: Sequence[tuple[BufferColumn, FullType]]) -> Any | None:
    """Parse the batch with Arrow; None if it must be read line by line."""
    if not _has_one_object_per_line(content) or _NEEDS_A_CLOSER_LOOK.search(content):
        return None
    fields = {column.name: _choose_wire_type(full) for column, full in columns}
    if None in fields.values():
        return None
    schema = pa.schema(list({**fields, ORG: pa.string()}.items()))
    options = _arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    reading = _arrow_json.ReadOptions(block_size=_BLOCK_BYTES)
    try:
        content.decode()
        table = _arrow_json.read_json(
            pa.BufferReader(content), read_options=reading, parse_options=options
        )
        if table.num_rows != content.rstrip(b"\n").count(b"\n") + 1:
            return None
        return _convert_strings(table, columns)
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _has_one_object_per_line(content: bytes) -> bool:
    """Whether every line break is between two objects. Then Arrow's objects are the lines."""
    text = content.removesuffix(b"\n")
    breaks = text.count(b"\n")
    return text[:1] == b"{" and text[-1:] == b"}" and text.count(b"}\n{") == breaks


def _choose_wire_type(full: FullType) -> Any | None:
    """Return the type with which Arrow parses a column; None if it cannot."""
    is_text = full.kind.name in ("timestamp", "date")
    if full.kind.name not in _PARSED_BY_ARROW or (full.is_array and is_text):
        return None
    return pa.string() if is_text else full_arrow_type(full)


def _convert_strings(table: Any, columns: Sequence[tuple[BufferColumn, FullType]]) -> Any | None:
    """Convert the columns that Arrow read as text; None if a value has another form."""
    for n, (column, full) in enumerate(columns):
        values = table.column(column.name)
        if full.kind.name in ("timestamp", "date"):
            form = _TIMESTAMPS if full.kind.name == "timestamp" else _DATES
            if not _holds_for_all(_compute.match_substring_regex(values, form)):
                return None
            table = table.set_column(n, column.name, values.cast(full_arrow_type(full)))
        elif full.kind.name == "double":
            flat = _compute.list_flatten(values) if full.is_array else values
            if not _holds_for_all(_compute.is_finite(flat)):
                return None
    return table


def _holds_for_all(mask: Any) -> bool:
    return _compute.all(mask).as_py() is not False


# --- line by line -------------------------------------------------------------------------------


def _read_lines(content: bytes, columns: Sequence[tuple[BufferColumn, FullType]]) -> Any:
    by_name = {column.name: (n, full) for n, (column, full) in enumerate(columns)}
    values: list[list[Any]] = [[] for _ in columns]
    orgs: list[Any] = []
    for number, line in _split_lines(content):
        row: list[Any] = [None] * len(columns)
        org = None
        seen: set[str] = set()
        for name, value, text in _read_members(number, line):
            if name in seen:
                raise BadBatch(
                    f"line {number}: {name!r} occurs twice in one object; send each name once"
                )
            seen.add(name)
            if name == ORG:
                org = value
            elif name not in by_name:
                raise BadBatch(
                    f"line {number}: the schema has no column {name!r}; leave it out, or declare it"
                )
            else:
                n, full = by_name[name]
                row[n] = _parse_value(number, columns[n][0], full, value, text)
        orgs.append(_parse_org(number, org))
        for n, value in enumerate(row):
            values[n].append(value)
    arrays = [pa.array(values[n], full_arrow_type(full)) for n, (_, full) in enumerate(columns)]
    names = [column.name for column, _ in columns]
    if ORG not in names:
        names, arrays = [*names, ORG], [*arrays, pa.array(orgs, pa.string())]
    else:
        arrays[names.index(ORG)] = pa.array(orgs, pa.string())
    return pa.table(arrays, names=names)


def _split_lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers. The last line may end with a line break."""
    if not content:
        return
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        if number > MAX_BATCH_ROWS:
            raise BadBatch(f"the batch has more than {MAX_BATCH_ROWS} rows; split it")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadBatch(f"line {number} is not UTF-8: {error.reason}; write UTF-8") from error
        if not text.strip():
            raise BadBatch(f"line {number} is empty; write one JSON object per line")
        yield number, text


def _read_members(number: int, line: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the value and the text of the value of each member of a JSON object."""
    try:
        yield from _scan_object(line)
    except (json.JSONDecodeError, StopIteration) as error:
        raise BadBatch(
            f"line {number} is not a JSON object: {error}; write one object per line"
        ) from error
    except BadBatch as error:
        raise BadBatch(f"line {number}: {error}") from error
    except RecursionError as error:
        raise BadBatch(f"line {number}: the JSON is nested too deeply; use fewer levels") from error
    except ValueError as error:  # an integer with thousands of digits
        raise BadBatch(f"line {number} is not JSON: {error}; write JSON") from error


def _scan_object(line: str) -> Iterator[tuple[str, Any, str]]:
    at = _expect(line, _skip_space(line, 0), "{")
    if line[at : at + 1] == "}":
        _expect_end(line, at + 1)
        return
    while True:
        if line[at : at + 1] != '"':
            raise json.JSONDecodeError("expected a name in quotes", line, at)
        name, at = _DECODER.raw_decode(line, at)
        at = _expect(line, _skip_space(line, at), ":")
        value, end = _DECODER.raw_decode(line, at)
        yield name, value, line[at:end]
        at = _skip_space(line, end)
        if line[at : at + 1] == "}":
            _expect_end(line, at + 1)
            return
        at = _expect(line, at, ",")


def _skip_space(line: str, at: int) -> int:
    match = _SPACE.match(line, at)
    return match.end() if match else at


def _expect(line: str, at: int, character: str) -> int:
    """Return the position after the character and the space behind it."""
    if line[at : at + 1] != character:
        raise json.JSONDecodeError(f"expected {character!r}", line, at)
    return _skip_space(line, at + 1)


def _expect_end(line: str, at: int) -> None:
    end = _skip_space(line, at)
    if end != len(line):
        raise json.JSONDecodeError("more text after the object", line, end)


def _refuse_constant(name: str) -> NoReturn:
    raise BadBatch(f"{name} is not JSON; send null, or no such row")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. Raises BadBatch for a repeated name: one of its values would be lost."""
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadBatch(f"{repeated!r} occurs twice in one object; send each name once")
    return json_object


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_object, parse_float=Decimal, parse_constant=_refuse_constant
)


def _parse_org(number: int, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadBatch(
            f"line {number}: 'org_id' must be string; leave it out, the platform sets it"
        )
    return value


def _parse_value(number: int, column: BufferColumn, full: FullType, value: Any, text: str) -> Any:
    if value is None:
        return None
    if full.kind.name == "json":
        return _check_json_text(number, column.name, text)
    try:
        return full.parse_json(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        shown = "a list or an object" if isinstance(value, dict | list) else text[:80]
        raise BadBatch(
            f"line {number}: {column.name!r} must be {column.type}, not {shown}"
        ) from error


def _check_json_text(number: int, name: str, text: str) -> str:
    """Return the text of a JSON value. Raises BadBatch for texts that Postgres cannot store."""
    if "\\u" in text:
        decoded = json.dumps(json.loads(text), ensure_ascii=False)
        try:
            decoded.encode()
        except UnicodeEncodeError as error:
            raise BadBatch(
                f"line {number}: {name!r} has half of a surrogate pair; remove it"
            ) from error
        if "\\u0000" in decoded:
            raise BadBatch(
                f"line {number}: {name!r} has a NUL, which Postgres cannot store; remove it"
            )
    return text
