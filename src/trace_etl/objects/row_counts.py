"""Count the rows of a file that untrusted code may have written, in the format of its dataset."""

from dataclasses import dataclass

from trace_etl.objects.parquet_footer import ENDING, BadFooter, read_footer_length, read_row_count
from trace_etl.objects.store import ObjectStore

TAIL_BYTES = 16 * 1024  # most footers are shorter
_MAX_FOOTER_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024  # small, so that a count does not delay other threads


@dataclass(frozen=True)
class StoredFile:
    """A file, its size and its last bytes, as they were read together."""

    store: ObjectStore
    key: str
    size: int
    tail: bytes


@dataclass(frozen=True)
class RowCount:
    """The rows in the part of a file that was read."""

    rows: int
    unread: int = 0
    """The bytes that were not read. Each of them could end one more row."""

    def allows(self, rows: int) -> bool:
        """Return whether the file can have this number of rows."""
        return self.rows <= rows <= self.rows + self.unread

    def __str__(self) -> str:
        return f"at least {self.rows}" if self.unread else str(self.rows)


def count_rows(file: StoredFile, suffix: str, *, max_bytes: int) -> RowCount:
    """Count the rows of a `parquet`, `csv` or `json` file. Reads at most `max_bytes` of a text file.

    Raises BadFooter if a Parquet file is not one, or an error of the store.
    """
    if suffix == "parquet":
        return RowCount(_read_parquet_rows(file))
    lines = _CsvLines() if suffix == "csv" else _Lines()
    limit = min(file.size, max_bytes)
    for start in range(0, limit, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, limit - start)
        lines.add(file.store.get_untrusted_range(file.key, start=start, length=length))
    is_last_line_open = file.size == limit and not file.tail.endswith(b"\n") and file.size > 0
    rows = lines.count + is_last_line_open - lines.headers
    return RowCount(max(rows, 0), file.size - limit)


class _Lines:
    """Counts the ends of lines."""

    headers = 0

    def __init__(self) -> None:
        self.count = 0

    def add(self, chunk: bytes) -> None:
        self.count += chunk.count(b"\n")


class _CsvLines(_Lines):
    """Counts the ends of lines outside quotes. A doubled quote inside quotes changes nothing."""

    headers = 1

    def __init__(self) -> None:
        super().__init__()
        self._is_quoted = False

    def add(self, chunk: bytes) -> None:
        parts = chunk.split(b'"')
        self.count += b"".join(parts[self._is_quoted :: 2]).count(b"\n")
        self._is_quoted ^= len(parts) % 2 == 0


def _read_parquet_rows(file: StoredFile) -> int:
    tail, length = file.tail, read_footer_length(file.tail) + ENDING
    if length > _MAX_FOOTER_BYTES:
        raise BadFooter(f"its footer is larger than {_MAX_FOOTER_BYTES} bytes")
    if length > len(tail):
        _, tail = file.store.get_untrusted_tail(file.key, max_bytes=length)
    if length > len(tail):
        raise BadFooter("its footer is cut off")
    return read_row_count(tail[-length:-ENDING])
