"""Run each query in its own DuckDB engine, which can read only the pinned files and tables."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from trace_etl.data.columns import declared_arrow_type
from trace_etl.data.errors import DataUnavailable
from trace_etl.data.snapshots import Snapshot, open_snapshot
from trace_etl.model.errors import Fault, Invalid, Unavailable
from trace_etl.model.result_formats import ResultFormat
from trace_etl.model.storage import PARQUET
from trace_etl.query.errors import NoDataYet, QueryLimitExceeded, QueryTooLarge
from trace_etl.query.requests import DatasetView, Params, QueryLimits
from trace_etl.query.sql import signed_urls
from trace_etl.query.sql.arrow_results import read_batches
from trace_etl.query.sql.duckdb_types import duckdb_type
from trace_etl.query.sql.messages import parse_sql_fault
from trace_etl.query.sql.quoting import quote_list, quote_name, quote_text, render_where
from trace_etl.query.sql.results import (
    Piece,
    ResultSummary,
    encode_result,
    encode_stored_columns,
)
from trace_etl.query.sql.tables import ReadBudget, open_table

_ENGINE_FAILURES = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException)
_HIDDEN_CAUSES = ("INTERRUPT Error", "unsuccessful or closed pending query result")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass
class QueryRun:
    """One run of a query, in this process. `pool` runs it in a process that can be killed."""

    sql: str
    views: list[DatasetView]
    limits: QueryLimits
    data_dsn: str | None = None
    params: Params = None
    engine: duckdb.DuckDBPyConnection | None = None
    """An engine with these limits, which the caller closes. Default: open one."""
    snapshot: Snapshot | None = None
    """The snapshot of Postgres data to read, which the caller closes. Default: open one."""
    has_views: bool = False
    """Whether the engine is restricted already, and has these views."""
    stored_columns: tuple[str, ...] | None = None
    """The columns of the only view that the query selects, if it does nothing else. Empty: all columns."""
    summary: ResultSummary = field(default_factory=ResultSummary)
    budget: ReadBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = ReadBudget(self.limits.table_bytes)

    def stream(self, form: ResultFormat = ResultFormat.JSON) -> Iterator[Piece]:
        """Run the query and yield its encoded result. Raises Invalid, NoDataYet or Unavailable."""
        try:
            with (
                self._open_snapshot() as snapshot,
                nullcontext(self.engine) if self.engine else open_engine(self.limits) as engine,
            ):
                yield from self._run(engine, snapshot, form)
        except DataUnavailable as error:
            raise Unavailable("Postgres data does not answer; try again") from error

    @contextmanager
    def _open_snapshot(self) -> Generator[Snapshot | None]:
        """Open a snapshot of Postgres data if the query may read from it."""
        if self.snapshot is not None:
            yield self.snapshot
            return
        if self.data_dsn is None or not any(view.table for view in self.views):
            yield None
            return
        with open_snapshot(self.data_dsn, self.limits.seconds) as snapshot:
            yield snapshot

    def _run(
        self, engine: duckdb.DuckDBPyConnection, snapshot: Snapshot | None, form: ResultFormat
    ) -> Iterator[Piece]:
        try:
            if not self.has_views:
                prepare_engine(engine, self.views, snapshot, self.budget)
            stored = self._find_stored(engine, form)
            if stored is not None:
                yield from stored
                return
            cursor = self._start(engine)
            yield from encode_result(cursor, form, self.limits, self.summary)
        except (OSError, pa.ArrowInvalid) as error:
            raise _make_unreadable() from error
        except duckdb.Error as error:
            raise self._translate_error(self._find_cause(engine, error)) from error
        except MemoryError as error:
            raise self._make_size_error() from error

    def _find_stored(
        self, engine: duckdb.DuckDBPyConnection, form: ResultFormat
    ) -> Iterator[Piece] | None:
        """Return the columns as they are stored, if the client takes them and they are the whole result."""
        columns, limits = self.stored_columns, self.limits
        if form is not ResultFormat.COLUMNS or columns is None or len(self.views) != 1:
            return None
        if limits.rows is not None or limits.reads_urls:
            return None
        return encode_stored_columns(engine, self.views[0], columns, self.summary)

    def _start(self, engine: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        return engine.execute(self.sql, self.params)

    def _find_cause(self, engine: duckdb.DuckDBPyConnection, error: duckdb.Error) -> duckdb.Error:
        """Return the error that stopped the query.

        DuckDB reports it to a reader of batches, but not always to a reader of rows.
        """
        if not any(text in str(error) for text in _HIDDEN_CAUSES):
            return error
        try:
            for _ in read_batches(self._start(engine), [])[1]:
                pass
        except duckdb.Error as cause:
            return cause
        return error

    def _translate_error(self, error: duckdb.Error) -> Exception:
        if self.budget.failure is not None:
            return self.budget.failure
        if isinstance(error, duckdb.OutOfMemoryException):
            return self._make_size_error()
        if isinstance(error, _ENGINE_FAILURES) or self._is_about_a_file(error):
            return _make_unreadable()
        if isinstance(error, duckdb.PermissionException):
            return Invalid(
                [
                    Fault(
                        "sql",
                        "reads something that is not a published dataset; name published datasets only",
                    )
                ]
            )
        return Invalid([parse_sql_fault(str(error))])

    def _make_size_error(self) -> QueryLimitExceeded:
        return QueryTooLarge.of(f"needed more than {self.limits.memory} of memory")

    def _is_about_a_file(self, error: duckdb.Error) -> bool:
        # The SQL guard rejects file names in SQL, so this file is missing or damaged.
        message = str(error)
        return any(file in message for view in self.views for file in view.files)


def _make_unreadable() -> Unavailable:
    return Unavailable("cannot read the pinned files; the log of the Query Service has the details")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 1.5GB."""
    number = text.rstrip("kMGTB")
    return int(float(number) * _UNITS[text[len(number) :]])


def open_engine(limits: QueryLimits) -> duckdb.DuckDBPyConnection:
    """Open an engine that holds no data. Its only extension reads signed URLs, if it must."""
    engine = duckdb.connect(
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
            **(signed_urls.ENGINE_CONFIG if limits.reads_urls else {}),
        },
    )
    if limits.reads_urls:
        signed_urls.load_reader(engine, limits.ca_file)
    return engine


def set_threads(engine: duckdb.DuckDBPyConnection, threads: int) -> None:
    """Change the threads of an engine that is not locked yet."""
    engine.execute(f"SET threads = {threads:d}")


def prepare_engine(
    engine: duckdb.DuckDBPyConnection,
    views: list[DatasetView],
    snapshot: Snapshot | None,
    budget: ReadBudget,
) -> None:
    """Restrict the engine to the pinned files and tables, then create a view for each dataset."""
    files = [file for view in views for file in view.files]
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(f"SET allowed_paths = {quote_list(files)}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    for view in views:
        _create_view(engine, view, snapshot, budget)


def _create_view(
    engine: duckdb.DuckDBPyConnection,
    view: DatasetView,
    snapshot: Snapshot | None,
    budget: ReadBudget,
) -> None:
    if view.rows is not None:
        engine.register(view.name, _make_table(view.columns, view.rows))
        return
    table = None
    if snapshot and view.table:
        table = open_table(snapshot, view.table, budget, view.covered_blocks)
    if table is None:
        query = _select_statement(view)
        types = {c["name"]: c["type"] for c in view.columns}
    elif not view.files and not view.where:
        engine.register(view.name, table)
        return
    else:
        engine.register(_name_table(view), table)
        query = f"SELECT * FROM {quote_name(_name_table(view))}"  # noqa: S608
        types = {f.name: str(f.type) for f in table.schema}
        if view.files:
            query = _add_hot_part(view, query, table.schema.names)
    if view.where:
        query = f"SELECT * FROM ({query}) WHERE {render_where(view, types)}"  # noqa: S608
    engine.execute(f"CREATE VIEW {quote_name(view.name)} AS {query}")


def _make_table(columns: list[dict[str, str]], rows: list[list[Any]]) -> Any:
    """Return rows that came as JSON as an Arrow table. Times are microseconds since 1970."""
    types: list[Any] = [declared_arrow_type(column["type"]) for column in columns]
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(column, pa.int64()).cast(kind)
        if str(kind).startswith("timestamp")
        else pa.array(column, kind)
        for column, kind in zip(values, types, strict=True)
    ]
    return pa.table(arrays, names=[column["name"] for column in columns])


def _name_table(view: DatasetView) -> str:
    """Return a name that no query can use: a dataset's name has no space."""
    return f"{view.name} table"


def _add_hot_part(view: DatasetView, hot_query: str, hot_columns: list[str]) -> str:
    """Return a query over the files and the newest rows of a table. Raises Invalid."""
    cold, hot = {c["name"] for c in view.columns}, set(hot_columns)
    # One of them may have been written with fewer columns than the other.
    if cold and not (cold <= hot or hot <= cold):
        problem = (
            f"the files and the newest rows of {view.name!r} do not have the same columns;"
            " correct `hot` in the `publish` section of its DAG"
        )
        raise Invalid([Fault("sql", problem)])
    return f"{_select_statement(view)} UNION ALL BY NAME {hot_query}"


def _select_statement(view: DatasetView) -> str:
    if view.files:
        files = quote_list(view.files)
        # Matching columns by name reads the footers of all files first.
        by_name = str(view.has_various_columns).lower()
        options = f"hive_partitioning = false, union_by_name = {by_name}"
        if view.format != PARQUET:
            return _select_text(view, files)
        return f"SELECT * FROM read_parquet({files}, {options})"  # noqa: S608
    if not view.columns:
        raise NoDataYet(
            f"dataset {view.name!r} has no data yet: none of its partitions is committed; query it later"
        )
    columns = [
        # DuckDB reads a column without a name as C and its index.
        f"NULL::{duckdb_type(c['type'])} AS {quote_name(c['name'] or f'C{n}')}"
        for n, c in enumerate(view.columns)
    ]
    return f"SELECT {', '.join(columns)} WHERE false"


def _select_text(view: DatasetView, files: str) -> str:
    """Return a query over text files. Their types are those of the writer: nothing is guessed."""
    if view.format == "json":
        [line] = view.columns
        options = "format = 'newline_delimited', compression = 'uncompressed'"
        return f"SELECT json::VARCHAR AS {quote_name(line['name'])} FROM read_json_objects({files}, {options})"  # noqa: S608
    types = ", ".join(
        f"{quote_text(c['name'])}: {quote_text(duckdb_type(c['type']))}" for c in view.columns
    )
    # The writer puts every text in quotes, so an empty field without quotes is null.
    options = (
        f"columns = {{{types}}}, auto_detect = false, header = true, delim = ',', quote = '\"', "
        "escape = '\"', nullstr = '', allow_quoted_nulls = false, compression = 'none', "
        "hive_partitioning = false"
    )
    return f"SELECT * FROM read_csv({files}, {options})"  # noqa: S608
