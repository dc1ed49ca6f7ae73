"""One query in one engine of its own, which can read the pinned files and nothing else."""

import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson
import structlog

from trace_etl.api.user.query import MAX_BYTES
from trace_etl.data.errors import DataUnavailable
from trace_etl.data.snapshots import Snapshot, snapshot
from trace_etl.model.errors import Fault, Invalid, Unavailable
from trace_etl.query.duckdb_types import duckdb_type
from trace_etl.query.errors import NoDataYet, QueryTooLarge
from trace_etl.query.json_values import json_safe
from trace_etl.query.tables import Budget, dataset

_CHUNK = 200
_BROKEN = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException)
_LINE = re.compile(r"\n\nLINE (\d+): (.*)\n( *)\^", re.DOTALL)
_log = structlog.stdlib.get_logger()
_OUR_SETTINGS = re.compile(r'\n\nUse "SET .*', re.DOTALL)


@dataclass(frozen=True)
class View:
    """A dataset's name, the files behind it, and the columns to show if there is no file."""

    name: str
    files: list[str]
    columns: list[dict[str, str]]
    table: str | None = None
    """The table of Postgres data that may hold its rows instead."""


@dataclass(frozen=True)
class Limits:
    rows: int
    memory: str
    threads: int
    bytes: int = MAX_BYTES
    seconds: float = 60.0
    table_bytes: int = 2**30


@dataclass(frozen=True)
class Result:
    """Columns, and rows that are JSON already."""

    columns: list[dict[str, str]]
    rows: list[bytes]
    truncated: bool


class Stopped(Exception):
    """Somebody called `stop`."""


@dataclass
class Run:
    """A query that another thread may stop at any time."""

    sql: str
    views: list[View]
    limits: Limits
    data_dsn: str | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _engine: duckdb.DuckDBPyConnection | None = None
    _snapshot: Snapshot | None = None
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.limits.table_bytes, self.limits.table_bytes)

    def stop(self) -> None:
        """Make `execute` raise Stopped. An interrupt between two statements is lost: repeat."""
        self._stopping.set()
        self.budget.is_stopped = True
        engine, taken = self._engine, self._snapshot
        if engine is not None:
            engine.interrupt()
        if taken is not None:
            taken.cancel()

    def execute(self) -> Result:
        """Run it to its end. Raises Invalid, NoDataYet, Unavailable or Stopped."""
        try:
            with self._tables() as taken, _open(self.limits) as engine:
                return self._run(engine, taken)
        except DataUnavailable as error:
            if self._stopping.is_set():
                raise Stopped from error
            _log.error("tables_unreadable", error=str(error))
            raise Unavailable("Postgres data does not answer; try again") from error

    @contextmanager
    def _tables(self) -> Generator[Snapshot | None]:
        """Postgres data as it is now, if the query reads anything of it."""
        if self.data_dsn is None or not any(view.table for view in self.views):
            yield None
            return
        with snapshot(self.data_dsn, self.limits.seconds) as taken:
            self._snapshot = taken
            try:
                yield taken
            finally:
                self._snapshot = None

    def _run(self, engine: duckdb.DuckDBPyConnection, taken: Snapshot | None) -> Result:
        self._engine = engine
        try:
            _prepare(engine, self.views, taken, self.budget)
            if self._stopping.is_set():
                raise Stopped
            return self._fetch(engine.execute(self.sql))
        except duckdb.InterruptException as error:
            raise Stopped from error
        except duckdb.Error as error:
            raise self._explained(error) from error
        finally:
            self._engine = None

    def _fetch(self, cursor: duckdb.DuckDBPyConnection) -> Result:
        columns = [{"name": d[0], "type": str(d[1])} for d in cursor.description or []]
        rows: list[bytes] = []
        room = self.limits.bytes
        for row in _rows(cursor):
            if self._stopping.is_set():
                raise Stopped
            encoded = orjson.dumps([json_safe(value) for value in row])
            room -= len(encoded) + 1
            if len(rows) == self.limits.rows or room < 0:
                return Result(columns, rows, truncated=True)
            rows.append(encoded)
        return Result(columns, rows, truncated=False)

    def _explained(self, error: duckdb.Error) -> Exception:
        if self.budget.failure is not None:
            return self.budget.failure
        if isinstance(error, duckdb.OutOfMemoryException):
            return QueryTooLarge(self.limits.memory)
        if isinstance(error, _BROKEN) or self._names_a_file(error):
            _log.error("pinned_files_unreadable", error=str(error))
            return Unavailable("the pinned files could not be read; the service's log says more")
        if isinstance(error, duckdb.PermissionException):
            return Invalid([Fault("sql", "reaches for something that is not a published dataset")])
        return Invalid([_sql_fault(str(error))])

    def _names_a_file(self, error: duckdb.Error) -> bool:
        # A file that is missing or damaged: the gate lets no SQL name one.
        message = str(error)
        return any(file in message for view in self.views for file in view.files)


def _open(limits: Limits) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": limits.memory,
            "threads": limits.threads,
            "temp_directory": "",
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
        },
    )


def _prepare(
    engine: duckdb.DuckDBPyConnection, views: list[View], taken: Snapshot | None, budget: Budget
) -> None:
    """Close the engine to all but the pinned files and tables, then name them."""
    files = [file for view in views for file in view.files]
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(f"SET allowed_paths = {_list(files)}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    for view in views:
        held = dataset(taken, view.table, budget) if taken and view.table else None
        if held is not None:
            engine.register(view.name, held)
            continue
        engine.execute(f"CREATE VIEW {_name(view.name)} AS {_body(view)}")


def _body(view: View) -> str:
    if view.files:
        files = _list(view.files)
        return f"SELECT * FROM read_parquet({files}, hive_partitioning = false)"  # noqa: S608
    if not view.columns:
        raise NoDataYet(f"dataset {view.name!r} has no data yet: no partition of it is committed")
    columns = [f"NULL::{duckdb_type(c['type'])} AS {_name(c['name'])}" for c in view.columns]
    return f"SELECT {', '.join(columns)} WHERE false"


def _name(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _list(words: list[str]) -> str:
    return "[" + ", ".join("'" + word.replace("'", "''") + "'" for word in words) + "]"


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while chunk := cursor.fetchmany(_CHUNK):
        yield from chunk


def _sql_fault(message: str) -> Fault:
    """DuckDB's complaint without its drawing of the line and its hints at settings."""
    place = _LINE.search(message)
    line = int(place[1]) if place else None
    column = None
    # A long line is shown from its middle on: then the caret tells nothing about the column.
    if place and not place[2].startswith("..."):
        column = len(place[3]) - len(f"LINE {line}: ") + 1
    words = _OUR_SETTINGS.sub("", message[: place.start()] if place else message)
    return Fault("sql", words.strip(), line, column)
