"""Read a batch in a columnar format: a Parquet file, or an Arrow stream or file."""

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from trace_etl.api.task.buffers import MAX_BATCH_ROWS, BufferBatch
from trace_etl.sink.errors import BadBatch

PARQUET = "application/vnd.apache.parquet"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
MAX_DECODED_BYTES = 256 * 1024 * 1024
"""Maximum size of the decoded rows. A compressed file of 16 MiB could hold far more."""
MAX_DECODER_BYTES = 1024 * 1024 * 1024
"""Memory that decoding a batch may use, with its copies. Sizes in a file's headers are not reliable."""
_parquet: Any = pq
_ipc: Any = ipc
_BROKEN = (pa.ArrowException, MemoryError, OSError, ValueError, OverflowError)


def read_parquet(content: bytes, _: BufferBatch) -> Any:
    """Read a Parquet file. Raises BadBatch."""
    try:
        return _read_parquet(content)
    except _BROKEN as error:
        raise _explain("Parquet file", error) from error


def _read_parquet(content: bytes) -> Any:
    with limit_memory(MAX_DECODER_BYTES):
        file = _parquet.ParquetFile(pa.BufferReader(content))
        metadata = file.metadata
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        _check_size(metadata.num_rows, sum(group.total_byte_size for group in groups))
        return _check_decoded(file.read(use_threads=False))


def read_arrow_stream(content: bytes, _: BufferBatch) -> Any:
    """Read an Arrow stream. Raises BadBatch."""
    return _read_arrow(_ipc.open_stream, content, "Arrow stream")


def read_arrow_file(content: bytes, _: BufferBatch) -> Any:
    """Read an Arrow file. Raises BadBatch."""
    return _read_arrow(_ipc.open_file, content, "Arrow file")


def _read_arrow(opened: Any, content: bytes, what: str) -> Any:
    try:
        return _read_record_batches(opened, content, what)
    except _BROKEN as error:
        raise _explain(what, error) from error


def _read_record_batches(opened: Any, content: bytes, what: str) -> Any:
    with limit_memory(MAX_DECODER_BYTES):
        reader = opened(pa.BufferReader(content))
        if what == "Arrow file":
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            batches = iter(reader)
        read: list[Any] = []
        rows = size = 0
        for batch in batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            _check_size(rows, size)
            read.append(batch)
        return _check_decoded(pa.Table.from_batches(read, schema=reader.schema))


@contextmanager
def limit_memory(size: int) -> Generator[None]:
    """Let this process allocate at most this many more bytes; then allocations raise MemoryError.

    The limit holds for all threads. It counts what the allocator takes from the kernel, so the package
    chooses an allocator that takes no memory in advance.
    """
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    new = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_DATA, (new if soft < 0 else min(new, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _check_size(rows: int, size: int) -> None:
    if rows > MAX_BATCH_ROWS:
        raise BadBatch(f"the batch has more than {MAX_BATCH_ROWS} rows; split it")
    if size > MAX_DECODED_BYTES:
        raise BadBatch(
            f"the decoded rows have more than {MAX_DECODED_BYTES} bytes; split the batch"
        )


def _check_decoded(table: Any) -> Any:
    _check_size(table.num_rows, table.nbytes)
    table.validate()
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            for chunk in column.chunks:
                chunk.validate(full=True)  # offsets inside the buffers, and texts that are UTF-8
        except pa.ArrowInvalid as error:
            advice = "; text must be UTF-8: write bytes as hex(…)" if "UTF8" in str(error) else ""
            raise BadBatch(f"column {name!r}: {_read_first_line(error)}{advice}") from error
    return table


def _explain(what: str, error: Exception) -> BadBatch:
    if isinstance(error, MemoryError):
        return BadBatch(
            f"decoding the {what} needs more than {MAX_DECODER_BYTES} bytes of memory; split the batch"
        )
    return BadBatch(f"the batch is not a readable {what}: {_read_first_line(error)}")


def _read_first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:300]
