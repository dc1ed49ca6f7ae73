"""Tables of append outputs: rows are upserted on a key, so a replayed task adds nothing."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
from psycopg import DataError, sql
from psycopg.errors import NotNullViolation

from trace_etl.data import hot_tables
from trace_etl.data.columns import arrow_schema, cast_batch, is_wider_or_equal
from trace_etl.data.connection import Conn, connect, transaction
from trace_etl.data.errors import ColumnsChanged, KeyMissing, StaleWriter, ValueRefused

_POSITION = ("block_number", "transaction_index", "log_index")


@dataclass(frozen=True)
class AppendTarget:
    """One output of one attempt: its table, its key, and the staging table of the attempt."""

    table: str
    schema: Any
    key: tuple[str, ...]
    dataset_version: UUID
    task_id: UUID
    attempt: int

    @property
    def staging(self) -> str:
        return f"staging_{self.task_id.hex}_{self.attempt}"


def create_staging(conn: Conn, target: AppendTarget) -> AppendTarget:
    """Create the output's table if it is missing, and an empty staging table for the attempt.

    Adds new columns to the table; they are null in existing rows. Returns the target with the column
    types of the table: an older table may have wider types. Raises ColumnsChanged.
    """
    hot_tables.ensure_table(conn, target.table, target.schema, key=target.key)
    stored = arrow_schema(hot_tables.list_columns(conn, target.table))
    added = [field for field in target.schema if field.name not in stored.names]
    _require_columns(target, stored)
    for column in added:
        hot_tables.add_column(conn, target.table, column)
    kinds = {field.name: field.type for field in (*stored, *added)}
    schema = pa.schema([(name, kinds[name]) for name in target.schema.names])
    for attempt in range(1, target.attempt + 1):  # drop the staging tables of killed workers
        drop_staging(conn, replace(target, attempt=attempt))
    conn.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} (LIKE {})").format(
            sql.Identifier(target.staging), sql.Identifier(target.table)
        )
    )
    return replace(target, schema=schema)


def _require_columns(target: AppendTarget, stored: Any) -> None:
    """Check that the rows of the table stay as they are. Raises ColumnsChanged."""
    for column in stored:
        position = target.schema.get_field_index(column.name)
        if position < 0:
            raise ColumnsChanged(
                f"the result no longer has the column {column.name}, which rows of the table have; "
                f"select it, for example as CAST(NULL AS {column.type}), or publish another output"
            )
        given = target.schema.field(position).type
        if not is_wider_or_equal(column.type, given):
            raise ColumnsChanged(
                f"column {column.name} is {given} now, but the table has {column.type}; CAST it, or give "
                "the column another name: new columns are added to the table"
            )


def drop_staging(conn: Conn, target: AppendTarget) -> None:
    """Drop the attempt's staging table if it exists."""
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(target.staging)))


def stage_rows(dsn: str, target: AppendTarget, batches: Iterable[Any]) -> int:
    """Copy rows to the staging table in one transaction, replacing those of an earlier try.

    Raises KeyMissing for a row without a key, ValueRefused for a value that Postgres cannot store.
    """
    with connect(dsn) as conn, transaction(conn), _translate_row_errors():
        conn.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(target.staging)))
        cast = (cast_batch(batch, target.schema) for batch in batches)
        return hot_tables.copy_rows(conn, target.staging, cast)


@contextmanager
def _translate_row_errors() -> Generator[None]:
    try:
        yield
    except NotNullViolation as error:
        raise KeyMissing(f"a row has no value in column {error.diag.column_name}") from error
    except DataError as error:  # for example a NUL in a text, or a year before 4713 BC
        raise ValueRefused(
            f"Postgres cannot store a value: {error.diag.message_primary}; change it in the SELECT"
        ) from error


_FENCE = """
INSERT INTO append_fences AS f (dataset_version, task_id, attempt)
VALUES (%(dataset_version)s, %(task_id)s, %(attempt)s)
ON CONFLICT (dataset_version, task_id)
DO UPDATE SET attempt = excluded.attempt, updated_at = now() WHERE f.attempt <= excluded.attempt
RETURNING 1
"""
_DELETE_OLD_FENCES = "DELETE FROM append_fences WHERE updated_at < now() - interval '30 days'"


def merge_rows(conn: Conn, target: AppendTarget) -> int:
    """Upsert the staged rows. Returns their number. Raises StaleWriter after a later attempt."""
    values = {
        "dataset_version": target.dataset_version,
        "task_id": target.task_id,
        "attempt": target.attempt,
    }
    conn.execute(_DELETE_OLD_FENCES)
    if conn.execute(_FENCE, values).fetchone() is None:
        raise StaleWriter(
            f"attempt {target.attempt} is outdated: a later attempt has written; stop this one"
        )
    count = conn.execute(_make_upsert(target)).rowcount
    drop_staging(conn, target)
    return count


def _make_upsert(target: AppendTarget) -> sql.Composed:
    """Of several rows with the same key, keep the row of the newest block."""
    names: Sequence[str] = target.schema.names
    other_columns = [name for name in names if name not in target.key]
    newest = sql.SQL("{} DESC NULLS LAST")
    latest = [newest.format(sql.Identifier(name)) for name in _POSITION if name in other_columns]
    order = [*_quote_identifiers(target.key), *latest]
    return sql.SQL(
        "INSERT INTO {table} AS t ({names}) SELECT DISTINCT ON ({key}) {names} FROM {staging} "
        "ORDER BY {order} ON CONFLICT ({key}) DO {action}"
    ).format(
        table=sql.Identifier(target.table),
        staging=sql.Identifier(target.staging),
        names=sql.SQL(", ").join(_quote_identifiers(names)),
        key=sql.SQL(", ").join(_quote_identifiers(target.key)),
        order=sql.SQL(", ").join(order),
        action=_make_conflict_action(other_columns),
    )


def _make_conflict_action(columns: Sequence[str]) -> sql.Composable:
    if not columns:
        return sql.SQL("NOTHING")
    assigned = [sql.SQL("{0} = excluded.{0}").format(name) for name in _quote_identifiers(columns)]
    return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(assigned))


def _quote_identifiers(names: Sequence[str]) -> list[sql.Composable]:
    return [sql.Identifier(name) for name in names]
