"""What the Query Service asks its query processes. Needs neither DuckDB nor Arrow."""

from dataclasses import dataclass, field
from typing import Any

from trace_etl.model.errors import Fault

Params = list[Any] | dict[str, Any] | None
"""The values of a query's parameters, by position or by name."""


@dataclass(frozen=True)
class TableReference:
    """A dataset that the SQL names, and its position."""

    name: str
    line: int | None
    column: int | None

    def fault(self, message: str) -> Fault:
        return Fault("sql", message, self.line, self.column)


@dataclass(frozen=True)
class DatasetView:
    """A dataset's name, its files, and its columns in case that it has no files."""

    name: str
    files: list[str]
    columns: list[dict[str, str]]
    table: str | None = None
    """The table in Postgres data that may hold its rows, or the newest of them."""
    covered_blocks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Blocks that the files hold. The rows of these blocks in the table are skipped."""
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    """The filter of an input: AND over its columns; a list means IN."""
    has_various_columns: bool = False
    """Whether files differ in their columns. A file without a column has nulls in it."""
    rows: list[list[Any]] | None = None
    """The rows of a table that the Query Service has read itself, in the order of `columns`."""
    format: str = "parquet"
    """The format of the files: `parquet`, `csv` or `json` (lines of JSON)."""


@dataclass(frozen=True)
class FilePart:
    """Bytes of a pinned file that belong to a result. The service reads them itself."""

    path: str
    spans: list[tuple[int, int]]
    """The first byte of each range, and the one after its last."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may return and use."""

    rows: int | None
    """None: all rows."""
    memory: str
    threads: int
    bytes: int | None = 10 * 2**20
    """The size of a result as JSON. None: any size."""
    seconds: float = 60.0
    cpu_seconds: float = 120.0
    table_bytes: int = 2**30
    reads_urls: bool = False
    """The files of views are signed URLs, not paths."""
    ca_file: str | None = None
    """Certificates to trust for these URLs besides those of the system."""
