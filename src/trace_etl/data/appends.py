"""Tables that rows are appended to: upserted on a key, so that a replay adds nothing."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from psycopg import DataError, sql
from psycopg.errors import NotNullViolation

from trace_etl.data import copy_encoding, hot_reading, hot_tables
from trace_etl.data.columns import arrow_schema
from trace_etl.data.connection import Conn, connect, transaction
from trace_etl.data.errors import KeyMissing, StaleWriter, ValueRefused

_POSITION = ("block_number", "transaction_index", "log_index")


@dataclass(frozen=True)
class Target:
    """One output of one attempt: its table, its key, and where its rows wait for the commit."""

    table: str
    schema: Any
    key: tuple[str, ...]
    dataset_version: UUID
    task_id: UUID
    attempt: int

    @property
    def staging(self) -> str:
        return f"staging_{self.task_id.hex}_{self.attempt}"


def prepare(conn: Conn, target: Target) -> Target:
    """Make the table if it is missing, and an empty place for this attempt's rows.

    Returns the target with the types that the table has: an older one may hold wider ones.
    """
    hot_tables.ensure(conn, target.table, target.schema, key=target.key)
    there = dict(hot_reading.columns_of(conn, target.table))
    shape = [(name, there[name]) for name in target.schema.names]
    place, table = sql.Identifier(target.staging), sql.Identifier(target.table)
    for attempt in range(1, target.attempt + 1):  # what a worker that was killed left behind
        discard(conn, replace(target, attempt=attempt))
    conn.execute(sql.SQL("CREATE UNLOGGED TABLE {} (LIKE {})").format(place, table))
    return replace(target, schema=arrow_schema(shape))


def discard(conn: Conn, target: Target) -> None:
    """Drop what waits, if anything does."""
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(target.staging)))


def stage(dsn: str, target: Target, batches: Iterable[Any]) -> int:
    """Copy rows to where they wait, in one transaction; a second try begins anew.

    Raises KeyMissing for a row without a key, ValueRefused for one that Postgres does not hold.
    """
    place = sql.Identifier(target.staging)
    rows = 0
    with connect(dsn) as conn, transaction(conn):
        conn.execute(sql.SQL("TRUNCATE {}").format(place))
        query = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            place, sql.SQL(", ").join(_named(target.schema.names))
        )
        with _storable(), conn.cursor().copy(query) as copy:
            copy.write(copy_encoding.HEADER)
            for batch in batches:
                copy.write(copy_encoding.rows(hot_reading.shaped(batch, target.schema)))
                rows += batch.num_rows
            copy.write(copy_encoding.TRAILER)
    return rows


@contextmanager
def _storable() -> Generator[None]:
    try:
        yield
    except NotNullViolation as error:
        raise KeyMissing(f"a row without {error.diag.column_name}") from error
    except DataError as error:  # a text with a NUL, a year before 4713 B.C.
        raise ValueRefused(
            f"a value that Postgres does not hold: {error.diag.message_primary}"
        ) from error


_FENCE = """
INSERT INTO append_fences AS f (dataset_version, task_id, attempt)
VALUES (%(dataset_version)s, %(task_id)s, %(attempt)s)
ON CONFLICT (dataset_version, task_id)
DO UPDATE SET attempt = excluded.attempt, updated_at = now() WHERE f.attempt <= excluded.attempt
RETURNING 1
"""
_FORGET = "DELETE FROM append_fences WHERE updated_at < now() - interval '30 days'"


def merge(conn: Conn, target: Target) -> int:
    """Upsert what waits; how many rows that were. Raises StaleWriter after a later attempt."""
    values = {
        "dataset_version": target.dataset_version,
        "task_id": target.task_id,
        "attempt": target.attempt,
    }
    conn.execute(_FORGET)
    if conn.execute(_FENCE, values).fetchone() is None:
        raise StaleWriter(f"attempt {target.attempt} came after a later one had written")
    count = conn.execute(_upsert(target)).rowcount
    discard(conn, target)
    return count


def _upsert(target: Target) -> sql.Composed:
    """Of several rows with one key, the one of the newest block stands."""
    names: Sequence[str] = target.schema.names
    rest = [name for name in names if name not in target.key]
    order = [*_named(target.key), *(_newest(name) for name in _POSITION if name in rest)]
    return sql.SQL(
        "INSERT INTO {table} AS t ({names}) SELECT DISTINCT ON ({key}) {names} FROM {staging} "
        "ORDER BY {order} ON CONFLICT ({key}) DO {action}"
    ).format(
        table=sql.Identifier(target.table),
        staging=sql.Identifier(target.staging),
        names=sql.SQL(", ").join(_named(names)),
        key=sql.SQL(", ").join(_named(target.key)),
        order=sql.SQL(", ").join(order),
        action=_action(rest),
    )


def _action(rest: Sequence[str]) -> sql.Composable:
    if not rest:
        return sql.SQL("NOTHING")
    assigned = [sql.SQL("{0} = excluded.{0}").format(name) for name in _named(rest)]
    return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(assigned))


def _named(names: Sequence[str]) -> list[sql.Composable]:
    return [sql.Identifier(name) for name in names]


def _newest(name: str) -> sql.Composable:
    return sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name))
