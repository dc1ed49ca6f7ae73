"""Read the file of a batch: check where it is and how large it is, then parse and check its rows."""

from collections.abc import Callable, Mapping
from typing import Any

from trace_etl.api.task.buffers import MAX_BATCH_ROWS, BufferBatch
from trace_etl.model.storage import batch_prefixes, key_of_url
from trace_etl.objects.errors import NotAnObject, ObjectTooLarge, StorageError
from trace_etl.objects.store import ObjectStore
from trace_etl.sink import columnar, json_lines
from trace_etl.sink.errors import BadBatch, BatchMissing
from trace_etl.sink.row_checks import check_rows

Reader = Callable[[bytes, BufferBatch], Any]
READERS: Mapping[str, Reader] = {
    **dict.fromkeys(json_lines.CONTENT_TYPES, json_lines.read_table),
    columnar.PARQUET: columnar.read_parquet,
    columnar.ARROW_STREAM: columnar.read_arrow_stream,
    columnar.ARROW_FILE: columnar.read_arrow_file,
}


def read_rows(batch: BufferBatch, store: ObjectStore, *, max_bytes: int) -> Any:
    """Read the rows of a batch as an Arrow table in the declared types. Raises BadBatch, BatchMissing."""
    if batch.columns is None:
        raise BadBatch("the dataset is not buffered: publish it with `write_mode: buffered`")
    reader = READERS.get(batch.content_type.partition(";")[0].strip().lower())
    if reader is None:
        raise BadBatch(f"content_type {batch.content_type!r}: send one of {', '.join(READERS)}")
    table = reader(_load_file(batch, store, max_bytes), batch)
    if table.num_rows > MAX_BATCH_ROWS:
        raise BadBatch(f"the batch has more than {MAX_BATCH_ROWS} rows; split it")
    if batch.record_count not in (None, table.num_rows):
        raise BadBatch(
            f"record_count is {batch.record_count}, but the batch has {table.num_rows} rows; correct it"
        )
    return check_rows(table, batch)


def _load_file(batch: BufferBatch, store: ObjectStore, max_bytes: int) -> bytes:
    """Read the file. It must be under the prefix of the attempt that published it."""
    root, key = store.org_root(batch.org_id), key_of_url(batch.batch_uri)
    own = batch_prefixes(batch.dataset_uuid, batch.task_id, batch.attempt)
    allowed = tuple(f"{root}/{prefix}" for prefix in own)
    if not key.startswith(allowed) or {"", ".", ".."} & set(key.split("/")):
        raise BadBatch(
            f"{batch.batch_uri} is not under s3://{allowed[0]}, the prefix of its attempt; write it there"
        )
    try:
        content = store.get_untrusted(key, max_bytes=max_bytes)
    except ObjectTooLarge as error:
        raise BadBatch(f"the batch is larger than {max_bytes} bytes; split it") from error
    except NotAnObject as error:
        raise BadBatch(f"batch_uri: {error}") from error
    except StorageError as error:
        raise BatchMissing(f"batch_uri: {error}") from error
    if batch.batch_size_bytes not in (None, len(content)):
        raise BadBatch(
            f"batch_size_bytes is {batch.batch_size_bytes}, but the file has {len(content)} bytes; correct it"
        )
    return content
