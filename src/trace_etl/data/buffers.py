"""Tables of buffered datasets: each batch is upserted on the key once, in the order of publication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from psycopg import sql
from psycopg.errors import UniqueViolation

from trace_etl.dag.column_types import FullType, buffered_form
from trace_etl.data import hot_tables
from trace_etl.data.columns import full_arrow_type, full_postgres_type
from trace_etl.data.connection import Conn

CURSOR = "_cursor"
"""The column with the number of the batch that last changed the row. Readers read a range of it."""
_PUBLISHED = "_published"
_ORG = "org_id"
_SAMPLE_KEYS = 32
_JSON_VERSION = b"\x01"  # the first byte of a jsonb value in a binary COPY
_compute: Any = pc  # the functions of pyarrow.compute have no types


@dataclass(frozen=True)
class BufferTable:
    """The table of one generation: its declared columns and the key that rows are upserted on."""

    table: str
    dataset_version: UUID
    columns: tuple[tuple[str, str, bool], ...]
    """Name, type, nullable."""
    key: tuple[str, ...]

    @property
    def staging(self) -> str:
        return f"incoming_{self.dataset_version.hex}"


@dataclass(frozen=True)
class RowBatch:
    """Rows, and the ids that the Dispatcher recorded for them. The ids override values in the rows."""

    publish_id: UUID
    publish_no: int
    org_id: UUID
    rows: Any
    """An Arrow table with the declared columns, in the types of `stored_type`."""


class WrittenBatch(NamedTuple):
    row_count: int
    cursor: int | None
    """None if the batch had no rows."""


_FIND_BATCHES = """
SELECT publish_id, row_count, cursor_value FROM buffer_batches WHERE publish_id = ANY(%s)
"""
_RECORD_BATCHES = """
WITH moved AS (
    UPDATE buffer_cursors SET cursor_value = %(last)s WHERE dataset_version = %(dataset_version)s
)
INSERT INTO buffer_batches (publish_id, dataset_version, cursor_value, row_count)
SELECT r.publish_id, %(dataset_version)s, r.cursor_value, r.row_count
  FROM unnest(%(ids)s::uuid[], %(cursors)s::bigint[], %(rows)s::bigint[])
       AS r (publish_id, cursor_value, row_count)
"""
_DELETE_OLD_RECORDS = """
DELETE FROM buffer_batches WHERE publish_id IN (
    SELECT publish_id FROM buffer_batches WHERE sunk_at < now() - interval '30 days'
     ORDER BY sunk_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""
# The row stays locked until the batches are committed, so a reader that sees a number sees all earlier ones.
_LOCK_CURSOR = "SELECT cursor_value FROM buffer_cursors WHERE dataset_version = %s FOR UPDATE"
_CREATE_CURSOR = """
INSERT INTO buffer_cursors (dataset_version, cursor_value) VALUES (%s, 0)
ON CONFLICT (dataset_version) DO NOTHING
"""


_HAS_KEYS = sql.SQL("""
SELECT EXISTS (SELECT FROM unnest({arrays}) AS k ({key}) JOIN {table} USING ({key}))
""")
_UPSERT_UNIQUE = sql.SQL("""
INSERT INTO {table} AS t ({names}) SELECT {names} FROM {staging}
ON CONFLICT ({key}) DO UPDATE SET {rest} WHERE t.{no} <= excluded.{no}
""")
# Of several rows with one key, the last is written: the staging table has the rows in the order of
# publication.
_UPSERT_LAST = sql.SQL("""
INSERT INTO {table} AS t ({names})
SELECT DISTINCT ON ({key}) {names} FROM {staging} ORDER BY {key}, ctid DESC
ON CONFLICT ({key}) DO UPDATE SET {rest} WHERE t.{no} <= excluded.{no}
""")


def find_written_batches(conn: Conn, publish_ids: Sequence[UUID]) -> dict[UUID, WrittenBatch]:
    """Return the results of the batches that were already written."""
    rows = conn.execute(_FIND_BATCHES, (list(publish_ids),)).fetchall()
    return {publish_id: WrittenBatch(*result) for publish_id, *result in rows}


def delete_old_records(conn: Conn) -> None:
    """Delete records that are too old for their batch to be delivered again, in bounded steps."""
    while conn.execute(_DELETE_OLD_RECORDS).rowcount:
        pass


def write_batches(
    conn: Conn, table: BufferTable, batches: Sequence[RowBatch], *, is_prepared: bool = False
) -> dict[UUID, WrittenBatch]:
    """Upsert batches of one table in the caller's transaction, in the order of publication.

    A row that a later batch has written is not changed. `is_prepared`: this connection has committed
    batches of the table before, so that the table and its staging table exist.
    """
    if not is_prepared:
        ensure_table(conn, table)
    last, written = _lock_cursor(conn, table, [batch.publish_id for batch in batches])
    new = sorted(
        (batch for batch in batches if batch.publish_id not in written), key=lambda b: b.publish_no
    )
    filled = [batch for batch in new if batch.rows.num_rows]
    cursors = {batch.publish_id: last + n for n, batch in enumerate(filled, 1)}
    if filled:
        _upsert(conn, table, [_complete_rows(table, b, cursors[b.publish_id]) for b in filled])
    results = {
        batch.publish_id: WrittenBatch(batch.rows.num_rows, cursors.get(batch.publish_id))
        for batch in new
    }
    if new:
        recorded = {
            "dataset_version": table.dataset_version,
            "last": last + len(filled),
            "ids": list(results),
            "cursors": [result.cursor for result in results.values()],
            "rows": [result.row_count for result in results.values()],
        }
        conn.execute(_RECORD_BATCHES, recorded)
    return {**written, **results}


def _lock_cursor(
    conn: Conn, table: BufferTable, publish_ids: Sequence[UUID]
) -> tuple[int, dict[UUID, WrittenBatch]]:
    """Lock the table's cursor. Returns its value, and the batches that are already written.

    The second statement runs under the lock: another sink may have written a batch meanwhile.
    """
    while True:
        with conn.pipeline():
            locked = conn.execute(_LOCK_CURSOR, (table.dataset_version,))
            found = conn.execute(_FIND_BATCHES, (list(publish_ids),))
        if row := locked.fetchone():
            return row[0], {publish_id: WrittenBatch(*result) for publish_id, *result in found}
        conn.execute(_CREATE_CURSOR, (table.dataset_version,))


def ensure_table(conn: Conn, table: BufferTable) -> None:
    """Create the table and its index if they are missing, and add missing columns."""
    hot_tables.lock_name(conn, table.table)
    index = f"{table.table[:50]}_cursor"
    # CREATE … IF NOT EXISTS locks the table before it checks, so it would wait for a running vacuum.
    existing = hot_tables.list_columns(conn, table.table)
    if not existing:
        _create_table(conn, table)
    else:
        _add_columns(conn, table, {name for name, _ in existing})
    if not _exists(conn, index):
        conn.execute(
            sql.SQL("CREATE INDEX {} ON {} ({})").format(
                *map(sql.Identifier, (index, table.table, CURSOR))
            )
        )
    hot_tables.grant_read(conn, table.table)
    staging = sql.Identifier(table.staging)
    conn.execute("SET LOCAL client_min_messages = warning")
    conn.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}").format(staging))
    conn.execute(
        sql.SQL("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DELETE ROWS").format(
            staging, sql.Identifier(table.table)
        )
    )


def _exists(conn: Conn, relation: str) -> bool:
    row = conn.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", (relation,)).fetchone()
    return row is not None and row[0]


def _create_table(conn: Conn, table: BufferTable) -> None:
    columns = [
        sql.SQL("{} {} {}").format(
            sql.Identifier(name),
            _choose_type_sql(kind),
            sql.SQL("" if nullable and name not in table.key else "NOT NULL"),
        )
        for name, kind, nullable in _list_stored_columns(table)
    ]
    conn.execute(
        sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
            sql.Identifier(table.table), sql.SQL(", ").join(columns), _join_names(table.key)
        )
    )


def _add_columns(conn: Conn, table: BufferTable, existing: set[str]) -> None:
    """Add columns that were declared after the table was created. They are nullable."""
    for name, kind, _ in _list_stored_columns(table):
        if name not in existing:
            conn.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                    sql.Identifier(table.table), sql.Identifier(name), _choose_type_sql(kind)
                )
            )


def _choose_type_sql(declared: str) -> sql.SQL:
    # The type comes from a fixed list, never from a user's text.
    return sql.SQL(cast("LiteralString", full_postgres_type(stored_type(declared))))


def _list_stored_columns(table: BufferTable) -> list[tuple[str, str, bool]]:
    """List the declared columns, and those that the platform adds."""
    declared = [column for column in table.columns if column[0] != _ORG]
    added = [(_ORG, "string", False), (CURSOR, "long", False), (_PUBLISHED, "long", False)]
    return [*declared, *added]


def stored_type(declared: str) -> FullType:
    """Return the type in which a declared column is stored. Raises TypeError."""
    stored = buffered_form(declared)
    if stored is None:
        raise TypeError(f"a buffered dataset cannot have a column of type {declared}")
    return stored


def _complete_rows(table: BufferTable, batch: RowBatch, cursor: int) -> Any:
    """Return the rows as one record batch, with the columns that the platform adds."""
    added: Mapping[str, Any] = {
        _ORG: pa.scalar(str(batch.org_id)),
        CURSOR: pa.scalar(cursor, pa.int64()),
        _PUBLISHED: pa.scalar(batch.publish_no, pa.int64()),
    }
    columns = _list_stored_columns(table)
    arrays: list[Any] = []
    for name, declared, _ in columns:
        if name in added:
            arrays.append(pa.repeat(added[name], batch.rows.num_rows))
            continue
        kind = stored_type(declared)
        column = batch.rows.column(name).cast(full_arrow_type(kind)).combine_chunks()
        arrays.append(_add_json_version(column) if kind.kind.name == "json" else column)
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in columns])


def _add_json_version(column: Any) -> Any:
    binary = column.cast(pa.binary())
    prefix = pa.scalar(_JSON_VERSION, pa.binary())
    return _compute.binary_join_element_wise(prefix, binary, pa.scalar(b"", pa.binary()))


def _upsert(conn: Conn, target: BufferTable, batches: list[Any]) -> None:
    is_unique = _has_unique_keys(batches, target.key)
    if is_unique and _insert(conn, target, batches):
        return
    hot_tables.copy_rows(conn, target.staging, batches)
    names = batches[0].schema.names
    other_columns = [name for name in names if name not in target.key]
    assigned = [
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in other_columns
    ]
    # The cursor's lock keeps other batches of the table away, so that two upserts cannot deadlock.
    query = _UPSERT_UNIQUE if is_unique else _UPSERT_LAST
    conn.execute(
        query.format(
            table=sql.Identifier(target.table),
            names=_join_names(names),
            staging=sql.Identifier(target.staging),
            key=_join_names(target.key),
            rest=sql.SQL(", ").join(assigned),
            no=sql.Identifier(_PUBLISHED),
        )
    )


def _insert(conn: Conn, target: BufferTable, batches: list[Any]) -> bool:
    """Copy rows with new keys directly into the table. Returns False if a key is not new.

    A sample of the keys is looked up first: a batch that is published again has most of its keys in
    the table. The cursor's lock excludes other writers, so a sample of all keys is exact.
    """
    keys: Any = pa.Table.from_batches([batch.select(list(target.key)) for batch in batches])
    sample = keys.take(list(range(0, keys.num_rows, -(-keys.num_rows // _SAMPLE_KEYS))))
    if _has_key(conn, target, sample):
        return False
    if sample.num_rows == keys.num_rows:
        hot_tables.copy_rows(conn, target.table, batches)
        return True
    try:
        with conn.transaction():
            hot_tables.copy_rows(conn, target.table, batches)
    except UniqueViolation:  # the sample missed the keys that the table has
        return False
    return True


def _has_key(conn: Conn, target: BufferTable, keys: Any) -> bool:
    """Whether the table has a row with one of the keys."""
    types = {name: kind for name, kind, _ in _list_stored_columns(target)}
    arrays = [sql.SQL("%s::{}[]").format(_choose_type_sql(types[name])) for name in target.key]
    query = _HAS_KEYS.format(
        table=sql.Identifier(target.table),
        key=_join_names(target.key),
        arrays=sql.SQL(", ").join(arrays),
    )
    row = conn.execute(query, [column.to_pylist() for column in keys.columns]).fetchone()
    return row is not None and row[0]


def _has_unique_keys(batches: list[Any], key: Sequence[str]) -> bool:
    """Whether each key occurs once. False if Arrow and Postgres could disagree about equal keys."""
    keys: Any = pa.Table.from_batches([batch.select(list(key)) for batch in batches])
    if not all(_is_exact(column.type) for column in keys.columns):
        return False
    return keys.group_by(list(key)).aggregate([]).num_rows == keys.num_rows


def _is_exact(kind: Any) -> bool:
    tests = (kinds.is_string, kinds.is_binary, kinds.is_integer, kinds.is_temporal)
    return any(test(kind) for test in tests)


def _join_names(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
