"""What the Query Service asks its query processes. Needs neither DuckDB nor Arrow."""

from dataclasses import dataclass

from trace_etl.model.errors import Fault


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
    """The table in Postgres data that may hold its rows instead."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may return and use."""

    rows: int
    memory: str
    threads: int
    bytes: int = 10 * 2**20
    seconds: float = 60.0
    cpu_seconds: float = 120.0
    table_bytes: int = 2**30
