"""Batches as files: found, read, and checked row by row against what was declared."""

import json
from collections.abc import Iterator
from typing import Any, cast

from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS, BufferBatch, BufferColumn
from trace_etl.dag.column_types import BY_SPARK
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import attempt_prefix, buffer_place
from trace_etl.objects.errors import NotAnObject, ObjectTooLarge, StorageError
from trace_etl.objects.store import ObjectStore

_JSON_LINES = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines")


class BadBatch(TraceError):
    """A batch that will never be written, and why."""

    code = "bad_batch"


class BatchMissing(TraceError):
    """The artifact is not there, or cannot be read now."""

    code = "batch_missing"
    retryable = True


def read(batch: BufferBatch, store: ObjectStore) -> list[tuple[Any, ...]]:
    """The rows of a batch, one for each key, the last. Raises BadBatch, BatchMissing."""
    if batch.columns is None:
        raise BadBatch("the dataset is not buffered: publish it with `write_mode: buffered`")
    if batch.content_type.partition(";")[0].strip() not in _JSON_LINES:
        raise BadBatch(f"content_type {batch.content_type!r}: send {_JSON_LINES[0]}")
    lines = _lines(_load(batch, store))
    rows = list(_rows(lines, batch.columns, batch.unique_key))
    if batch.record_count is not None and batch.record_count != len(rows):
        raise BadBatch(f"record_count is {batch.record_count}, but there are {len(rows)} rows")
    names = [column.name for column in batch.columns]
    at = [names.index(name) for name in batch.unique_key]
    return list({_key(row, at, names): row for row in rows}.values())


def _key(row: tuple[Any, ...], at: list[int], names: list[str]) -> tuple[Any, ...]:
    for n in at:
        if row[n] != row[n]:  # equal to nothing here, and to itself in Postgres
            raise BadBatch(f"{names[n]!r} is NaN, and part of the unique_key")
    return tuple(row[n] for n in at)


def _load(batch: BufferBatch, store: ObjectStore) -> bytes:
    """The artifact. Only what the publishing attempt may write is read at all."""
    scheme, _, rest = batch.batch_uri.partition("://")
    bucket, _, key = rest.partition("/")
    own = attempt_prefix(buffer_place(batch.dataset_uuid), batch.task_id, batch.attempt)
    if scheme != "s3" or not key.startswith(own) or {"", ".", ".."} & {bucket, *key.split("/")}:
        raise BadBatch(f"{batch.batch_uri} is not under {own}, where this attempt may write")
    try:
        return store.get_untrusted(f"{bucket}/{key}", max_bytes=MAX_BATCH_BYTES)
    except ObjectTooLarge as error:
        raise BadBatch(
            f"the batch is larger than {MAX_BATCH_BYTES} bytes; publish several"
        ) from error
    except NotAnObject as error:
        raise BadBatch(f"batch_uri: {error}") from error
    except StorageError as error:
        raise BatchMissing(f"batch_uri: {error}") from error


def _lines(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    count = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_BATCH_ROWS:
            raise BadBatch(f"the batch has more than {MAX_BATCH_ROWS} rows; publish several")
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadBatch(f"line {number} is not JSON: {error}") from error
        except RecursionError as error:
            raise BadBatch(f"line {number}: the JSON is nested too deeply") from error
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
    parse = BY_SPARK[column.type].parse_json
    if parse is None:
        raise BadBatch(f"{column.name!r} is {column.type}, which a buffered dataset cannot have")
    try:
        return parse(given)
    except (ValueError, TypeError, OverflowError) as error:
        nested = isinstance(given, dict | list)
        shown = "a list or an object" if nested else json.dumps(given)[:80]
        raise BadBatch(f"line {number}: {column.name!r} is {column.type}, not {shown}") from error
