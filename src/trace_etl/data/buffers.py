"""Tables of buffered datasets: each batch is upserted on the key once, in the order of publication."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from psycopg import sql

from trace_etl.dag.column_types import ColumnType, buffered_form
from trace_etl.data import hot_tables
from trace_etl.data.columns import declared_arrow_type
from trace_etl.data.connection import Conn

CURSOR = "_cursor"
"""The column with the number of the batch that last changed the row. Readers read a range of it."""
_PUBLISHED = "_published"
_ORG = "org_id"


@dataclass(frozen=True)
class BufferTable:
    """The table of one generation: its declared columns and the key that rows are upserted on."""

    table: str
    dataset_version: UUID
    columns: tuple[tuple[str, str, bool], ...]
    """Name, type, nullable."""
    key: tuple[str, ...]


@dataclass(frozen=True)
class BatchIdentity:
    """The ids that the Dispatcher recorded for a batch. They override values in the rows."""

    publish_id: UUID
    publish_no: int
    org_id: UUID


class WrittenBatch(NamedTuple):
    row_count: int
    cursor: int | None
    """None if the batch had no rows."""


_FIND_BATCH = "SELECT row_count, cursor_value FROM buffer_batches WHERE publish_id = %s"
_RECORD_BATCH = """
INSERT INTO buffer_batches (publish_id, dataset_version, cursor_value, row_count)
VALUES (%s, %s, %s, %s)
"""
_DELETE_OLD_RECORDS = """
DELETE FROM buffer_batches WHERE publish_id IN (
    SELECT publish_id FROM buffer_batches WHERE sunk_at < now() - interval '30 days'
     ORDER BY sunk_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""
# The row stays locked until the batch is committed, so a reader that sees a number sees all earlier ones.
_NEXT_CURSOR = """
INSERT INTO buffer_cursors AS c (dataset_version, cursor_value) VALUES (%s, 1)
ON CONFLICT (dataset_version) DO UPDATE SET cursor_value = c.cursor_value + 1
RETURNING cursor_value
"""


def find_written_batch(conn: Conn, publish_id: UUID) -> WrittenBatch | None:
    """Return the result of a batch that was already written."""
    row = conn.execute(_FIND_BATCH, (publish_id,)).fetchone()
    return WrittenBatch(*row) if row else None


def write_batch(
    conn: Conn, table: BufferTable, batch: BatchIdentity, rows: Sequence[Sequence[Any]]
) -> WrittenBatch:
    """Upsert a batch in the caller's transaction. Rows have the declared columns, in their order.

    A row that a later batch has written is not changed.
    """
    ensure_table(conn, table)
    conn.execute(_DELETE_OLD_RECORDS)
    cursor = None
    if rows:
        row = conn.execute(_NEXT_CURSOR, (table.dataset_version,)).fetchone()
        assert row is not None
        cursor = int(row[0])
    # Check again under the cursor's lock: another sink may have written the batch meanwhile.
    if (written := find_written_batch(conn, batch.publish_id)) is not None:
        return written
    if cursor is not None:
        _upsert(conn, table, _to_arrow(table, batch, cursor, rows))
    conn.execute(_RECORD_BATCH, (batch.publish_id, table.dataset_version, cursor, len(rows)))
    return WrittenBatch(len(rows), cursor)


def ensure_table(conn: Conn, table: BufferTable) -> None:
    """Create the table and its index if they are missing."""
    hot_tables.lock_name(conn, table.table)
    index = f"{table.table[:50]}_cursor"
    # CREATE … IF NOT EXISTS locks the table before it checks, so it would wait for a running vacuum.
    if not _exists(conn, table.table):
        _create_table(conn, table)
    if not _exists(conn, index):
        conn.execute(
            sql.SQL("CREATE INDEX {} ON {} ({})").format(
                *map(sql.Identifier, (index, table.table, CURSOR))
            )
        )
    hot_tables.grant_read(conn, table.table)


def _exists(conn: Conn, relation: str) -> bool:
    row = conn.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", (relation,)).fetchone()
    return row is not None and row[0]


def _create_table(conn: Conn, table: BufferTable) -> None:
    columns = [
        sql.SQL("{} {} {}").format(
            sql.Identifier(name),
            sql.SQL(_stored_type(kind).postgres or ""),
            sql.SQL("" if nullable and name not in table.key else "NOT NULL"),
        )
        for name, kind, nullable in _stored_columns(table)
    ]
    conn.execute(
        sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
            sql.Identifier(table.table), sql.SQL(", ").join(columns), _join_names(table.key)
        )
    )


def _stored_columns(table: BufferTable) -> list[tuple[str, str, bool]]:
    """The declared columns, and those that the platform adds."""
    declared = [column for column in table.columns if column[0] != _ORG]
    added = [(_ORG, "string", False), (CURSOR, "long", False), (_PUBLISHED, "long", False)]
    return [*declared, *added]


def _stored_type(declared: str) -> ColumnType:
    stored = buffered_form(declared)
    if stored is None:
        raise TypeError(f"a buffered dataset cannot have a column of type {declared}")
    return stored


def _to_arrow(
    table: BufferTable, batch: BatchIdentity, cursor: int, rows: Sequence[Sequence[Any]]
) -> Any:
    declared = {name: [row[n] for row in rows] for n, (name, _, _) in enumerate(table.columns)}
    added = {_ORG: str(batch.org_id), CURSOR: cursor, _PUBLISHED: batch.publish_no}
    values = {**declared, **{name: [value] * len(rows) for name, value in added.items()}}
    columns = _stored_columns(table)
    arrays = [
        pa.array(values[name], declared_arrow_type(_stored_type(kind).name))
        for name, kind, _ in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in columns])


def _upsert(conn: Conn, target: BufferTable, batch: Any) -> None:
    table, staging = sql.Identifier(target.table), sql.Identifier("incoming")
    conn.execute(sql.SQL("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DROP").format(staging, table))
    hot_tables.copy_rows(conn, "incoming", [batch])
    names = batch.schema.names
    other_columns = [name for name in names if name not in target.key]
    assigned = [
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in other_columns
    ]
    # Rows are locked in the order of the key, so two concurrent batches cannot deadlock.
    conn.execute(
        sql.SQL(
            "INSERT INTO {table} AS t ({names}) SELECT {names} FROM {staging} ORDER BY {key} "
            "ON CONFLICT ({key}) DO UPDATE SET {rest} WHERE t.{no} <= excluded.{no}"
        ).format(
            table=table,
            names=_join_names(names),
            staging=staging,
            key=_join_names(target.key),
            rest=sql.SQL(", ").join(assigned),
            no=sql.Identifier(_PUBLISHED),
        )
    )


def _join_names(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
