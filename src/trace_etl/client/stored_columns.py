"""Decode stored columns while they arrive: the Query Service sends them if they are the whole result."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from trace_etl.model.column_stream import LENGTH, Span

_MAX_KEPT_BYTES = 64 * 2**20
_DECODERS = 2
_MAX_DECODING = 8
"""Decoded row groups that may wait while the next one arrives. With few, receiving waits for decoding."""


class ExactReader(Protocol):
    """A source of bytes. Both methods raise an error if the source ends too early."""

    def read_exactly(self, size: int) -> bytes:
        """Return this many bytes."""
        ...

    def fill(self, buffer: memoryview) -> None:
        """Fill a buffer."""
        ...


class ReceiveMemory:
    """Buffers of received files, kept for the next ones. Thread-safe.

    The kernel clears new memory page by page, which takes as long as decrypting and decoding a column.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Any] = []

    def take(self, size: int) -> Any:
        """Return a buffer of at least this many bytes."""
        import pyarrow as pa

        with self._lock:
            for number, buffer in enumerate(self._kept):
                if buffer.size >= size:
                    return self._kept.pop(number)
        return pa.allocate_buffer(size)

    def give_back(self, buffer: Any) -> None:
        """Keep a buffer that nothing refers to any more."""
        with self._lock:
            if buffer.size + sum(kept.size for kept in self._kept) <= _MAX_KEPT_BYTES:
                self._kept.append(buffer)


def read_schema(source: ExactReader) -> Any:
    """Read the schema at the start of a stream, after its first bytes."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(_read_frame(source)))


def read_tables(source: ExactReader, schema: Any, memory: ReceiveMemory) -> Iterator[Any]:
    """Yield a table for each row group, in order."""
    with ThreadPoolExecutor(_DECODERS, "trace-decoder") as decoder:
        decoding: deque[tuple[Future[Any], Any]] = deque()

        def wait_for_first() -> Any:
            decoded, finished = decoding.popleft()
            table = decoded.result()
            if finished is not None:
                memory.give_back(finished)  # tables are copies
            return table

        for buffer, metadata, number in _receive(source, memory):
            decoded = decoder.submit(_decode, buffer, metadata, number, schema)
            is_last = number == metadata.num_row_groups - 1
            decoding.append((decoded, buffer if is_last else None))
            if len(decoding) > _MAX_DECODING:
                yield wait_for_first()
        while decoding:
            yield wait_for_first()


def _receive(source: ExactReader, memory: ReceiveMemory) -> Iterator[tuple[Any, Any, int]]:
    """Yield each row group when its bytes have arrived.

    The memory of columns that were not asked for is never touched, so it is not used.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    while header := _read_frame(source):
        file = json.loads(header)
        buffer = memory.take(file["size"])
        content = memoryview(buffer)
        _fill(source, content, file["footer"])
        metadata = pq.read_metadata(pa.BufferReader(buffer.slice(0, file["size"])))
        for number, spans in enumerate(file["row_groups"]):
            for span in spans:
                _fill(source, content, span)
            yield buffer, metadata, number


def _decode(buffer: Any, metadata: Any, number: int, schema: Any) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file: Any = pq.ParquetFile(pa.BufferReader(buffer), metadata=metadata)
    table = file.read_row_group(number, columns=schema.names).select(schema.names)
    return pa.Table.from_arrays(table.columns, schema=schema)


def _read_frame(source: ExactReader) -> bytes:
    (length,) = LENGTH.unpack(source.read_exactly(LENGTH.size))
    return source.read_exactly(length)


def _fill(source: ExactReader, content: memoryview, span: Span) -> None:
    start, end = span
    source.fill(content[start:end])
