"""Run each query in its own DuckDB engine, which can read only the pinned files and tables."""

import re
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson

from trace_etl.data.errors import DataUnavailable
from trace_etl.data.snapshots import Snapshot, open_snapshot
from trace_etl.model.errors import Fault, Invalid, Unavailable
from trace_etl.query.duckdb_types import duckdb_type
from trace_etl.query.errors import NoDataYet, QueryLimitExceeded, QueryTooLarge
from trace_etl.query.json_values import json_safe
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.tables import ReadBudget, open_table

_FETCH_ROWS = 200
_ENGINE_FAILURES = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException)
_LINE_EXCERPT = re.compile(r"\n\nLINE (\d+): (.*)\n( *)\^", re.DOTALL)
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SETTINGS_HINT = re.compile(r'\n\nUse "SET .*', re.DOTALL)


@dataclass(frozen=True)
class QueryResult:
    """Columns, and rows that are already encoded as JSON."""

    columns: list[dict[str, str]]
    rows: list[bytes]
    truncated: bool


@dataclass
class QueryRun:
    """One run of a query, in this process. `pool` runs it in a process that can be killed."""

    sql: str
    views: list[DatasetView]
    limits: QueryLimits
    data_dsn: str | None = None
    engine: duckdb.DuckDBPyConnection | None = None
    """A new engine with these limits, which the caller closes. Default: open one."""
    budget: ReadBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = ReadBudget(self.limits.table_bytes)

    def execute(self) -> QueryResult:
        """Run the query. Raises Invalid, NoDataYet or Unavailable."""
        try:
            with (
                self._open_snapshot() as snapshot,
                self.engine or open_engine(self.limits) as engine,
            ):
                return self._run(engine, snapshot)
        except DataUnavailable as error:
            raise Unavailable("Postgres data does not answer; try again") from error

    def _open_engine(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return open_engine(self.limits) if self.engine is None else nullcontext(self.engine)

    @contextmanager
    def _open_snapshot(self) -> Generator[Snapshot | None]:
        """Open a snapshot of Postgres data if the query may read from it."""
        if self.data_dsn is None or not any(view.table for view in self.views):
            yield None
            return
        with open_snapshot(self.data_dsn, self.limits.seconds) as snapshot:
            yield snapshot

    def _run(self, engine: duckdb.DuckDBPyConnection, snapshot: Snapshot | None) -> QueryResult:
        try:
            prepare_engine(engine, self.views, snapshot, self.budget)
            return self._fetch_result(engine.execute(self.sql))
        except duckdb.Error as error:
            raise self._translate_error(error) from error
        except MemoryError as error:
            raise self._too_large() from error

    def _fetch_result(self, cursor: duckdb.DuckDBPyConnection) -> QueryResult:
        columns = [{"name": d[0], "type": str(d[1])} for d in cursor.description or []]
        rows: list[bytes] = []
        bytes_left = self.limits.bytes
        for row in _fetch_rows(cursor):
            encoded = orjson.dumps([json_safe(value) for value in row])
            bytes_left -= len(encoded) + 1
            if len(rows) == self.limits.rows or bytes_left < 0:
                return QueryResult(columns, rows, truncated=True)
            rows.append(encoded)
        return QueryResult(columns, rows, truncated=False)

    def _translate_error(self, error: duckdb.Error) -> Exception:
        if self.budget.failure is not None:
            return self.budget.failure
        if isinstance(error, duckdb.OutOfMemoryException):
            return self._too_large()
        if isinstance(error, _ENGINE_FAILURES) or self._names_a_file(error):
            return Unavailable(
                "cannot read the pinned files; the log of the Query Service has the details"
            )
        if isinstance(error, duckdb.PermissionException):
            return Invalid([Fault("sql", "reads something that is not a published dataset")])
        return Invalid([_sql_fault(str(error))])

    def _too_large(self) -> QueryLimitExceeded:
        return QueryTooLarge.of(f"needed more than {self.limits.memory} of memory")

    def _names_a_file(self, error: duckdb.Error) -> bool:
        # The SQL guard rejects file names in SQL, so this file is missing or damaged.
        message = str(error)
        return any(file in message for view in self.views for file in view.files)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 1.5GB."""
    number = text.rstrip("kMGTB")
    return int(float(number) * _UNITS[text[len(number) :]])


def open_engine(limits: QueryLimits) -> duckdb.DuckDBPyConnection:
    """Open an engine that holds no data and reads no extensions."""
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": limits.memory,
            "threads": limits.threads,
            "temp_directory": "",
            "secret_directory": "",
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
        },
    )


def prepare_engine(
    engine: duckdb.DuckDBPyConnection,
    views: list[DatasetView],
    snapshot: Snapshot | None,
    budget: ReadBudget,
) -> None:
    """Restrict the engine to the pinned files and tables, then create a view for each dataset."""
    files = [file for view in views for file in view.files]
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(f"SET allowed_paths = {_quote_list(files)}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    for view in views:
        table = open_table(snapshot, view.table, budget) if snapshot and view.table else None
        if table is not None:
            engine.register(view.name, table)
            continue
        engine.execute(f"CREATE VIEW {_quote_name(view.name)} AS {_select_statement(view)}")


def _select_statement(view: DatasetView) -> str:
    if view.files:
        files = _quote_list(view.files)
        return f"SELECT * FROM read_parquet({files}, hive_partitioning = false)"  # noqa: S608
    if not view.columns:
        raise NoDataYet(
            f"dataset {view.name!r} has no data yet: none of its partitions is committed"
        )
    columns = [
        # DuckDB reads a column without a name as C and its index.
        f"NULL::{duckdb_type(c['type'])} AS {_quote_name(c['name'] or f'C{n}')}"
        for n, c in enumerate(view.columns)
    ]
    return f"SELECT {', '.join(columns)} WHERE false"


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_list(texts: list[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _fetch_rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while chunk := cursor.fetchmany(_FETCH_ROWS):
        yield from chunk


def _sql_fault(message: str) -> Fault:
    """Turn a message of DuckDB into a fault, without its line excerpt and hints about settings."""
    excerpt = _LINE_EXCERPT.search(message)
    line = int(excerpt[1]) if excerpt else None
    column = None
    # DuckDB cuts off the start of a long line: the caret then does not give the column.
    if excerpt and not excerpt[2].startswith("..."):
        column = len(excerpt[3]) - len(f"LINE {line}: ") + 1
    text = _SETTINGS_HINT.sub("", message[: excerpt.start()] if excerpt else message)
    return Fault("sql", text.strip(), line, column)
