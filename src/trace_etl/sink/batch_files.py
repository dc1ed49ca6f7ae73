"""Read the file of a batch and check every row against the declared columns."""

import json
from collections.abc import Iterator
from typing import Any, cast

from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS, BufferBatch, BufferColumn
from trace_etl.dag.column_types import BY_SPARK
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import batch_prefixes, key_of_url
from trace_etl.objects.errors import NotAnObject, ObjectTooLarge, StorageError
from trace_etl.objects.store import ObjectStore

_JSON_LINES = ("application/jsonl", "application/x-ndjson", "application/x-jsonlines")


class BadBatch(TraceError, code="bad_batch"):
    """The batch is invalid and will never be written."""


class BatchMissing(TraceError, code="batch_missing", retryable=True):
    """The file of the batch is missing, or cannot be read now."""


def read_rows(batch: BufferBatch, store: ObjectStore) -> list[tuple[Any, ...]]:
    """Read the rows of a batch: for each key, only the last row. Raises BadBatch or BatchMissing."""
    if batch.columns is None:
        raise BadBatch("the dataset is not buffered: publish it with `write_mode: buffered`")
    if batch.content_type.partition(";")[0].strip() not in _JSON_LINES:
        raise BadBatch(f"content_type {batch.content_type!r}: send {_JSON_LINES[0]}")
    lines = _parse_lines(_load_file(batch, store))
    rows = list(_parse_rows(lines, batch.columns, batch.unique_key))
    if batch.record_count is not None and batch.record_count != len(rows):
        raise BadBatch(f"record_count is {batch.record_count}, but the batch has {len(rows)} rows")
    names = [column.name for column in batch.columns]
    key_indexes = [names.index(name) for name in batch.unique_key]
    return list({_read_key(row, key_indexes, names): row for row in rows}.values())


def _read_key(row: tuple[Any, ...], indexes: list[int], names: list[str]) -> tuple[Any, ...]:
    for n in indexes:
        if row[n] != row[n]:  # NaN: two NaNs differ in Python, but are equal in Postgres
            raise BadBatch(f"{names[n]!r} is NaN, but it is part of the unique_key")
    return tuple(row[n] for n in indexes)


def _load_file(batch: BufferBatch, store: ObjectStore) -> bytes:
    """Read the file. It must be under the prefix of the attempt that published it."""
    root, key = store.org_root(batch.org_id), key_of_url(batch.batch_uri)
    own = batch_prefixes(batch.dataset_uuid, batch.task_id, batch.attempt)
    allowed = tuple(f"{root}/{prefix}" for prefix in own)
    if not key.startswith(allowed) or {"", ".", ".."} & set(key.split("/")):
        raise BadBatch(
            f"{batch.batch_uri} is not under s3://{allowed[0]}, the prefix of its attempt"
        )
    try:
        content = store.get_untrusted(key, max_bytes=MAX_BATCH_BYTES)
    except ObjectTooLarge as error:
        raise BadBatch(f"the batch is larger than {MAX_BATCH_BYTES} bytes; split it") from error
    except NotAnObject as error:
        raise BadBatch(f"batch_uri: {error}") from error
    except StorageError as error:
        raise BatchMissing(f"batch_uri: {error}") from error
    if batch.batch_size_bytes not in (None, len(content)):
        raise BadBatch(
            f"batch_size_bytes is {batch.batch_size_bytes}, but the file has {len(content)} bytes"
        )
    return content


def _parse_lines(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    count = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_BATCH_ROWS:
            raise BadBatch(f"the batch has more than {MAX_BATCH_ROWS} rows; split it")
        try:
            row = json.loads(line, object_pairs_hook=_build_object)
        except ValueError as error:
            raise BadBatch(f"line {number} is not JSON: {error}") from error
        except BadBatch as error:
            raise BadBatch(f"line {number}: {error}") from error
        except RecursionError as error:
            raise BadBatch(f"line {number}: the JSON is nested too deeply") from error
        if not isinstance(row, dict):
            raise BadBatch(f"line {number} is not a JSON object")
        yield number, cast("dict[str, Any]", row)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. Raises BadBatch for a repeated name: one of its values would be lost."""
    json_object = dict(pairs)
    if len(json_object) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadBatch(f"{repeated!r} occurs twice in one object; send each name once")
    return json_object


def _parse_rows(
    lines: Iterator[tuple[int, dict[str, Any]]], columns: list[BufferColumn], key: list[str]
) -> Iterator[tuple[Any, ...]]:
    # An org_id in a row is ignored: the Dispatcher knows the organisation of the batch.
    known = {column.name for column in columns} | {"org_id"}
    required = {c.name for c in columns if not c.nullable or c.name in key} - {"org_id"}
    for number, row in lines:
        for name in row.keys() - known:
            raise BadBatch(f"line {number}: the schema has no column {name!r}")
        for name in sorted(required):
            if row.get(name) is None:
                raise BadBatch(
                    f"line {number}: {name!r} is missing or null, which the schema does not allow"
                )
        yield tuple(_parse_value(number, column, row.get(column.name)) for column in columns)


def _parse_value(number: int, column: BufferColumn, value: Any) -> Any:
    if value is None or column.name == "org_id":
        return None
    parse = BY_SPARK[column.type].parse_json
    if parse is None:
        raise BadBatch(
            f"{column.name!r}: a buffered dataset cannot have a column of type {column.type}"
        )
    try:
        return parse(value)
    except (ValueError, TypeError, OverflowError) as error:
        is_nested = isinstance(value, dict | list)
        shown = "a list or an object" if is_nested else json.dumps(value)[:80]
        raise BadBatch(
            f"line {number}: {column.name!r} must be {column.type}, not {shown}"
        ) from error
