"""Batches as files: found, read, and checked row by row against what was declared."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from trace_etl.model.errors import TraceError
from trace_etl.model.storage import buffer_prefix
from trace_etl.wire.buffers import MOST_BYTES, BufferBatch, BufferColumn

_JSON_LINES = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines")
_INT, _LONG = 2**31, 2**63


class BadBatch(TraceError):
    """A batch that will never be written, and why."""

    code = "bad_batch"


class BatchMissing(TraceError):
    """The artifact is not there, or cannot be read now."""

    code = "batch_missing"
    retryable = True


def read(batch: BufferBatch, root: Path) -> list[tuple[Any, ...]]:
    """The rows of a batch, one for each key, the last. Raises BadBatch, BatchMissing."""
    if batch.columns is None:
        raise BadBatch("the dataset is not buffered: publish it with `write_mode: buffered`")
    if batch.content_type.partition(";")[0].strip() not in _JSON_LINES:
        raise BadBatch(f"content_type {batch.content_type!r}: send {_JSON_LINES[0]}")
    lines = _lines(_load(_path(batch, root)))
    rows = list(_rows(lines, batch.columns, batch.unique_key))
    if batch.record_count is not None and batch.record_count != len(rows):
        raise BadBatch(f"record_count is {batch.record_count}, but there are {len(rows)} rows")
    names = [column.name for column in batch.columns]
    at = [names.index(name) for name in batch.unique_key]
    return list({tuple(row[n] for n in at): row for row in rows}.values())


def _path(batch: BufferBatch, root: Path) -> Path:
    """Where the artifact is. Only what the publishing attempt may write is read at all."""
    scheme, _, rest = batch.batch_uri.partition("://")
    bucket, _, key = rest.partition("/")
    own = buffer_prefix(batch.dataset_uuid, batch.task_id, batch.attempt)
    path = root / bucket / key
    inside = (root / bucket / own).resolve()
    if scheme not in ("s3", "file") or not key.startswith(own) or bucket in ("", ".", ".."):
        raise BadBatch(f"{batch.batch_uri} is not under {own}, where this attempt may write")
    if not path.resolve().is_relative_to(inside):
        raise BadBatch(f"{batch.batch_uri} leads elsewhere")
    return path


def _load(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BatchMissing(f"{path.name}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise BadBatch(f"the batch is larger than {MOST_BYTES} bytes; publish several")
    return content


def _lines(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadBatch(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadBatch(f"line {number} is not a JSON object")
        yield number, cast("dict[str, Any]", row)


def _rows(
    lines: Iterator[tuple[int, dict[str, Any]]], columns: list[BufferColumn], key: list[str]
) -> Iterator[tuple[Any, ...]]:
    # Whose row it is, is not for the row to say: an org_id in it is let pass and not looked at.
    known = {column.name for column in columns} | {"org_id"}
    required = {c.name for c in columns if not c.nullable or c.name in key} - {"org_id"}
    for number, row in lines:
        for name in row.keys() - known:
            raise BadBatch(f"line {number}: there is no column {name!r} in the schema")
        for name in sorted(required):
            if row.get(name) is None:
                raise BadBatch(f"line {number}: {name!r} is missing and must not be null")
        yield tuple(_value(number, column, row.get(column.name)) for column in columns)


def _value(number: int, column: BufferColumn, given: Any) -> Any:
    if given is None or column.name == "org_id":
        return None
    try:
        return _PARSERS[column.type](given)
    except (ValueError, TypeError, OverflowError) as error:
        shown = json.dumps(given)[:80]
        raise BadBatch(f"line {number}: {column.name!r} is {column.type}, not {shown}") from error


def _boolean(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given


def _integer(given: Any, limit: int) -> int:
    # Beyond 2^53 many writers of JSON can only send digits in quotes.
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError
    value = int(given)
    if not -limit <= value < limit:
        raise OverflowError
    return value


def _double(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError
    return float(given)


def _string(given: Any) -> str:
    if not isinstance(given, str) or "\x00" in given:
        raise TypeError
    given.encode()  # half a surrogate pair is no text
    return given


def _binary(given: Any) -> bytes:
    if not isinstance(given, str) or not given.startswith("0x"):
        raise TypeError
    return bytes.fromhex(given[2:])


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "boolean": _boolean,
    "int": partial(_integer, limit=_INT),
    "long": partial(_integer, limit=_LONG),
    "double": _double,
    "string": _string,
    "binary": _binary,
}
