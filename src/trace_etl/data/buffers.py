"""Tables of buffered datasets: batches are upserted on the key, each once, in a fixed order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from psycopg import sql

from trace_etl.dag.column_types import ColumnType, buffered_form
from trace_etl.data import copy_encoding, hot_tables
from trace_etl.data.columns import declared_arrow_type
from trace_etl.data.connection import Conn

CURSOR = "_cursor"
"""Which batch last changed the row: what a reader reads up to, and from."""
_PUBLISHED = "_published"
_ORG = "org_id"


@dataclass(frozen=True)
class Shape:
    """The table of one generation: its declared columns and the key that rows are upserted on."""

    table: str
    dataset_version: UUID
    columns: tuple[tuple[str, str, bool], ...]
    """Name, type, nullable."""
    key: tuple[str, ...]


@dataclass(frozen=True)
class Stamp:
    """What the trusted record says of a batch, whatever its rows say."""

    publish_id: UUID
    publish_no: int
    org_id: UUID


@dataclass(frozen=True)
class Sunk:
    row_count: int
    cursor: int | None
    """None: there were no rows."""


_KNOWN = "SELECT row_count, cursor_value FROM buffer_batches WHERE publish_id = %s"
_REMEMBER = """
INSERT INTO buffer_batches (publish_id, dataset_version, cursor_value, row_count)
VALUES (%s, %s, %s, %s)
"""
_FORGET = """
DELETE FROM buffer_batches WHERE publish_id IN (
    SELECT publish_id FROM buffer_batches WHERE sunk_at < now() - interval '30 days'
     ORDER BY sunk_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""
# Held until the batch is committed: a reader that sees a number sees all before it.
_NEXT = """
INSERT INTO buffer_cursors AS c (dataset_version, cursor_value) VALUES (%s, 1)
ON CONFLICT (dataset_version) DO UPDATE SET cursor_value = c.cursor_value + 1
RETURNING cursor_value
"""


def known(conn: Conn, publish_id: UUID) -> Sunk | None:
    """What became of a batch that was written before."""
    row = conn.execute(_KNOWN, (publish_id,)).fetchone()
    return Sunk(row[0], row[1]) if row else None


def write(conn: Conn, shape: Shape, stamp: Stamp, rows: Sequence[Sequence[Any]]) -> Sunk:
    """Upsert a batch in the caller's transaction; rows have the declared columns, in their order.

    A row that a later batch has written stays as that one left it.
    """
    ensure(conn, shape)
    conn.execute(_FORGET)
    cursor = None
    if rows:
        found = conn.execute(_NEXT, (shape.dataset_version,)).fetchone()
        assert found is not None
        cursor = int(found[0])
    if (done := known(conn, stamp.publish_id)) is not None:  # a rival was quicker
        return done
    if cursor is not None:
        _upsert(conn, shape, _batch(shape, stamp, cursor, rows))
    conn.execute(_REMEMBER, (stamp.publish_id, shape.dataset_version, cursor, len(rows)))
    return Sunk(len(rows), cursor)


def ensure(conn: Conn, shape: Shape) -> None:
    """Make the table and its index if they are missing."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (shape.table,))
    index = f"{shape.table[:50]}_cursor"
    # IF NOT EXISTS locks the table before it looks, and would wait for every vacuum.
    if not _exists(conn, shape.table):
        _make_table(conn, shape)
    if not _exists(conn, index):
        conn.execute(
            sql.SQL("CREATE INDEX {} ON {} ({})").format(
                *map(sql.Identifier, (index, shape.table, CURSOR))
            )
        )
    hot_tables.let_read(conn, shape.table)


def _exists(conn: Conn, relation: str) -> bool:
    row = conn.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", (relation,)).fetchone()
    return row is not None and row[0]


def _make_table(conn: Conn, shape: Shape) -> None:
    columns = [
        sql.SQL("{} {} {}").format(
            sql.Identifier(name),
            sql.SQL(_stored_type(kind).postgres or ""),
            sql.SQL("" if nullable and name not in shape.key else "NOT NULL"),
        )
        for name, kind, nullable in _all(shape)
    ]
    conn.execute(
        sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
            sql.Identifier(shape.table), sql.SQL(", ").join(columns), _names(shape.key)
        )
    )


def _all(shape: Shape) -> list[tuple[str, str, bool]]:
    declared = [column for column in shape.columns if column[0] != _ORG]
    ours = [(_ORG, "string", False), (CURSOR, "long", False), (_PUBLISHED, "long", False)]
    return [*declared, *ours]


def _stored_type(declared: str) -> ColumnType:
    stored = buffered_form(declared)
    if stored is None:
        raise TypeError(f"a buffered dataset cannot have a column of type {declared}")
    return stored


def _batch(shape: Shape, stamp: Stamp, cursor: int, rows: Sequence[Sequence[Any]]) -> Any:
    given = {name: [row[n] for row in rows] for n, (name, _, _) in enumerate(shape.columns)}
    ours = {_ORG: str(stamp.org_id), CURSOR: cursor, _PUBLISHED: stamp.publish_no}
    values = {**given, **{name: [value] * len(rows) for name, value in ours.items()}}
    arrays = [
        pa.array(values[name], declared_arrow_type(_stored_type(kind).name))
        for name, kind, _ in _all(shape)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in _all(shape)])


def _upsert(conn: Conn, shape: Shape, batch: Any) -> None:
    table, staging = sql.Identifier(shape.table), sql.Identifier("incoming")
    names = [name for name, _, _ in _all(shape)]
    conn.execute(sql.SQL("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DROP").format(staging, table))
    copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(staging, _names(names))
    with conn.cursor().copy(copying) as copy:
        copy.write(copy_encoding.HEADER)
        copy.write(copy_encoding.rows(batch))
        copy.write(copy_encoding.TRAILER)
    rest = [name for name in names if name not in shape.key]
    assigned = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest]
    # In the order of the key: two batches at once never wait for each other in a circle.
    conn.execute(
        sql.SQL(
            "INSERT INTO {table} AS t ({names}) SELECT {names} FROM {staging} ORDER BY {key} "
            "ON CONFLICT ({key}) DO UPDATE SET {rest} WHERE t.{no} <= excluded.{no}"
        ).format(
            table=table,
            names=_names(names),
            staging=staging,
            key=_names(shape.key),
            rest=sql.SQL(", ").join(assigned),
            no=sql.Identifier(_PUBLISHED),
        )
    )


def _names(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
