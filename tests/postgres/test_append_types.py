"""Every column type that `append` supports survives a round trip through Postgres."""

from collections.abc import Generator
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.services.postgres import Templates, copied
from trace_etl.data import appends, connection, hot_tables, table_reader
from trace_etl.data.appends import AppendTarget
from trace_etl.data.columns import arrow_schema, arrow_type, postgres_type
from trace_etl.data.errors import ColumnsChanged, ValueRefused
from trace_etl.model.storage import hot_table

EXACT = Context(prec=60)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda n: Decimal(n).scaleb(-scale, EXACT))


# Postgres stores no NUL in text, and Spark no surrogates.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes().map(lambda t: t.replace(tzinfo=UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(1, 0): decimals(1, 0),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(10, 5): decimals(10, 5),
    pa.decimal128(18, 18): decimals(18, 18),
    pa.decimal128(20, 0): decimals(20, 0),
    pa.decimal128(38, 0): decimals(38, 0),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.decimal128(38, 37): decimals(38, 37),
    pa.decimal128(38, 38): decimals(38, 38),
}
KINDS = [*SCALARS, *(pa.list_(kind) for kind in SCALARS)]
SCHEMA = pa.schema([("key", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(KINDS))])
VALUES = [
    *(st.none() | values for values in SCALARS.values()),
    *(st.none() | st.lists(st.none() | values, max_size=3) for values in SCALARS.values()),
]


@pytest.fixture(scope="module")
def dsn(templates: Templates) -> Generator[str]:
    with copied(templates) as dsns:
        yield dsns.data


def _target(schema: Any) -> AppendTarget:
    version = uuid4()
    return AppendTarget(hot_table(uuid4(), version), schema, ("key",), version, uuid4(), 1)


def _appended(dsn: str, target: AppendTarget, batch: Any) -> list[dict[str, Any]]:
    with connection.connect(dsn) as conn, connection.transaction(conn):
        prepared = appends.create_staging(conn, target)
    # Two batches. The second is a slice, so its buffers start at an offset.
    half = batch.num_rows // 2
    appends.stage_rows(dsn, prepared, [batch.slice(0, half), batch.slice(half)])
    with connection.connect(dsn) as conn, connection.transaction(conn):
        assert appends.merge_rows(conn, prepared) == batch.num_rows
        schema = arrow_schema(hot_tables.list_columns(conn, target.table))
    found = pa.Table.from_batches(
        table_reader.read_batches(dsn, target.table, schema, []), schema=schema
    )
    with connection.connect(dsn) as conn:
        conn.execute(f"DROP TABLE {target.table}")  # type: ignore[call-overload]
    assert found.schema == batch.schema
    return found.sort_by("key").to_pylist()


@settings(max_examples=12)
@given(st.lists(st.tuples(*VALUES), min_size=1, max_size=4))
def test_every_value_survives_a_round_trip(dsn: str, rows: list[tuple[Any, ...]]) -> None:
    numbered = [(n, *row) for n, row in enumerate(rows)]
    columns = [pa.array([row[at] for row in numbered], kind.type) for at, kind in enumerate(SCHEMA)]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    assert _appended(dsn, _target(SCHEMA), batch) == batch.to_pylist()


def test_postgres_reads_the_values_that_were_appended(dsn: str) -> None:
    row = {
        "key": 1,
        "amount": Decimal("-12345.6700"),
        "day": date(1969, 12, 31),
        "at": datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
        "tags": ["a", None, "ü"],
        "prices": [Decimal("0.0001"), None],
        "none": [],
    }
    schema = pa.schema(
        [
            ("key", pa.int64()),
            ("amount", pa.decimal128(20, 4)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("prices", pa.list_(pa.decimal128(9, 4))),
            ("none", pa.list_(pa.int32())),
        ]
    )
    target = _target(schema)
    with connection.connect(dsn) as conn, connection.transaction(conn):
        prepared = appends.create_staging(conn, target)
    appends.stage_rows(dsn, prepared, [pa.RecordBatch.from_pylist([row], schema=schema)])
    with connection.connect(dsn) as conn, connection.transaction(conn):
        appends.merge_rows(conn, prepared)
    with psycopg.connect(dsn) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        (found,) = conn.execute(f"SELECT * FROM {target.table}").fetchall()
    assert found == tuple(row.values())


def test_appending_narrower_types_keeps_the_wider_types_of_the_table(dsn: str) -> None:
    wide = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("x", pa.float64())])
    narrow = pa.schema([("key", pa.int64()), ("n", pa.int32()), ("x", pa.float32())])
    target = _target(wide)
    with connection.connect(dsn) as conn, connection.transaction(conn):
        appends.create_staging(conn, target)
    again = AppendTarget(target.table, narrow, ("key",), target.dataset_version, uuid4(), 1)
    with connection.connect(dsn) as conn, connection.transaction(conn):
        prepared = appends.create_staging(conn, again)
    assert prepared.schema == wide
    rows = [{"key": 1, "n": -7, "x": 0.5}]
    appends.stage_rows(dsn, prepared, [pa.RecordBatch.from_pylist(rows, schema=narrow)])
    with connection.connect(dsn) as conn, connection.transaction(conn):
        appends.merge_rows(conn, prepared)
    with psycopg.connect(dsn) as conn:
        assert conn.execute(f"SELECT * FROM {target.table}").fetchall() == [(1, -7, 0.5)]


def _staged(dsn: str, table: AppendTarget, schema: Any) -> AppendTarget:
    target = AppendTarget(table.table, schema, ("key",), table.dataset_version, uuid4(), 1)
    with connection.connect(dsn) as conn, connection.transaction(conn):
        return appends.create_staging(conn, target)


def test_a_new_column_is_added_and_existing_rows_have_null(dsn: str) -> None:
    first = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    target = _target(first)
    for schema, row in (
        (first, {"key": 1, "n": 1}),
        (first.append(pa.field("amount", pa.decimal128(20, 2))), {"key": 2, "n": 2, "amount": 5}),
    ):
        staged = _staged(dsn, target, schema)
        appends.stage_rows(dsn, staged, [pa.RecordBatch.from_pylist([row], schema=schema)])
        with connection.connect(dsn) as conn, connection.transaction(conn):
            appends.merge_rows(conn, staged)
    with psycopg.connect(dsn) as conn:
        found = conn.execute(f"SELECT * FROM {target.table} ORDER BY key").fetchall()
    assert found == [(1, 1, None), (2, 2, Decimal("5.00"))]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ([("key", pa.int64())], "no longer has the column n"),
        (
            [("key", pa.int64()), ("n", pa.string())],
            "column n is string now, but the table has int32",
        ),
        (
            [("key", pa.int64()), ("n", pa.int64())],
            "column n is int64 now, but the table has int32",
        ),
        ([("key", pa.int64()), ("n", pa.list_(pa.int32()))], "but the table has int32"),
    ],
)
def test_a_change_of_existing_columns_is_refused_and_adds_nothing(
    dsn: str, changed: list[Any], reason: str
) -> None:
    first = pa.schema([("key", pa.int64()), ("n", pa.int32())])
    target = _target(first)
    _staged(dsn, target, first)
    with pytest.raises(ColumnsChanged, match=reason):
        _staged(dsn, target, pa.schema([*changed, ("more", pa.int64())]))
    with connection.connect(dsn) as conn:
        assert [name for name, _ in hot_tables.list_columns(conn, target.table)] == ["key", "n"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.string(), "a\0b"), (pa.timestamp("us"), -(2**62))],
    ids=["NUL", "out of range"],
)
def test_a_value_that_postgres_cannot_store_is_refused(dsn: str, kind: Any, value: Any) -> None:
    schema = pa.schema([("key", pa.int64()), ("x", kind)])
    target = _target(schema)
    with connection.connect(dsn) as conn, connection.transaction(conn):
        prepared = appends.create_staging(conn, target)
    column = pa.array([value], pa.int64()).cast(kind) if value != "a\0b" else pa.array([value])
    batch = pa.RecordBatch.from_arrays([pa.array([1]), column], schema=schema)
    with pytest.raises(ValueRefused, match="Postgres cannot store a value"):
        appends.stage_rows(dsn, prepared, [batch])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_arrow_and_postgres_types_map_to_each_other(kind: Any) -> None:
    assert arrow_type(postgres_type(kind)) == kind


def test_a_type_that_postgres_does_not_support_is_refused() -> None:
    for kind in (pa.struct([("a", pa.int8())]), pa.list_(pa.list_(pa.int64())), pa.time32("s")):
        with pytest.raises(TypeError, match="cannot store a column of type"):
            postgres_type(kind)
