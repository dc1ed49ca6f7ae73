"""SQL queries on datasets whose rows are stored in tables of Postgres data."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.data.buffered import write_rows
from support.services.dispatcher import Secrets
from support.services.postgres import sql
from support.services.query import QuerySetup, running_query_service
from support.waiting import eventually
from trace_etl.data import appends, buffers, connection, hot_tables
from trace_etl.data.appends import AppendTarget
from trace_etl.model.storage import hot_table
from trace_etl.query.errors import QueryTooLarge
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.sql.engine import QueryRun
from trace_etl.query.sql.implied_conditions import find_values, narrow_block_range

DAG = """
name: shop
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks]
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_logs]
  - name: keep
    operator: sql
    inputs: [{from: {job: ingest}}]
    outputs: [kept]
    update_strategy: append
    unique_key: [who]
    config: {sql: "SELECT VERSION AS who"}
  - name: empty
    operator: sql
    inputs: [{from: {job: ingest}}]
    outputs: [empty]
    update_strategy: append
    unique_key: [who]
    config: {sql: SELECT 1 AS who}
  - name: odd
    operator: sql
    inputs: [{from: {job: ingest}}]
    outputs: [odd]
    update_strategy: append
    unique_key: [who]
    config: {sql: SELECT 1 AS who}
publish:
  - {name: blocks, from: {job: ingest}}
  - {name: odd, from: {job: odd}}
  - {name: logs, from: {job: follow, output: hot_logs}}
  - {name: kept, from: {job: keep}}
  - {name: empty, from: {job: empty}}
"""
LOGS = pa.schema(
    [("block_number", pa.int64()), ("log_index", pa.int64()), ("address", pa.binary())]
)
KEPT = pa.schema(
    [
        ("who", pa.string()),
        ("amount", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("block_number", pa.int32()),
    ]
)


@dataclass(frozen=True)
class TableQuerySetup(QuerySetup):
    """Datasets whose rows are stored in tables."""

    @property
    def data(self) -> str:
        return self.warehouse.dsns.data

    def table(self, name: str) -> str:
        return hot_table(*self.warehouse.generation(name))

    def follow(self, first: int, last: int) -> None:
        rows = [
            {"block_number": n, "log_index": i, "address": bytes([i])}
            for n in range(first, last + 1)
            for i in range(3)
        ]
        with connection.connect(self.data) as conn, connection.transaction(conn):
            table = self.table("logs")
            hot_tables.ensure_table(conn, table, LOGS)
            hot_tables.delete_from_block(conn, table, first)
            hot_tables.copy_rows(conn, table, [pa.RecordBatch.from_pylist(rows, schema=LOGS)])

    def keep(
        self,
        *rows: dict[str, Any],
        name: str = "kept",
        schema: pa.Schema = KEPT,
        unique_key: tuple[str, ...] = ("who",),
    ) -> None:
        dataset, version = self.warehouse.generation(name)
        table = hot_table(dataset, version)
        target = AppendTarget(table, schema, unique_key, version, uuid4(), 1)
        with connection.connect(self.data) as conn, connection.transaction(conn):
            target = appends.create_staging(conn, target)
        appends.stage_rows(
            self.data, target, [pa.RecordBatch.from_pylist(list(rows), schema=schema)]
        )
        with connection.connect(self.data) as conn, connection.transaction(conn):
            appends.merge_rows(conn, target)

    def run(self, query: str, **limits: Any) -> QueryRun:
        """Run a query without HTTP, to inspect what it reads from Postgres."""
        names = ("logs", "kept")
        views = [DatasetView(name, [], [], self.table(name)) for name in names]
        reader = self.warehouse.dsns.data_reader
        return QueryRun(query, views, QueryLimits(100, "200MB", 2, **limits), reader)


def read_all(run: QueryRun) -> bytes:
    """Run a query and return its rows."""
    return b"".join(run.stream())


@pytest.fixture(scope="module")
def shop(reading: QuerySetup) -> TableQuerySetup:
    numbers = pa.table({"block_number": pa.array(range(100), pa.int64())})
    reading.warehouse.commit("blocks", 0, 99, numbers)
    place = TableQuerySetup(reading.query, reading.warehouse)
    place.follow(0, 999)
    place.keep(ANN, {"who": "bob"})
    return place


ANN = {
    "who": "ann",
    "amount": Decimal("-12.3400"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 0, 0, 1, UTC),
    "tags": ["a", None],
    "block_number": 5,
}


def test_a_hot_table_is_queried_with_its_generation_pinned(shop: TableQuerySetup) -> None:
    answer = shop.query.ask(
        "SELECT count(*), max(block_number) FROM logs WHERE block_number BETWEEN 10 AND 19"
        " AND address = '\\x01'::BLOB"
    )
    assert answer["rows"] == [[10, 19]]
    version = str(shop.warehouse.generation("logs")[1])
    assert answer["pinned"] == [{"dataset": "logs", "dataset_version": version, "partitions": 0}]


def test_every_value_of_an_appended_table_is_shown(shop: TableQuerySetup) -> None:
    answer = shop.query.ask("SELECT * FROM kept ORDER BY who")
    assert answer["rows"] == [
        ["ann", "-12.3400", "2024-02-29", "2024-02-29T12:00:00.000001+00:00", ["a", None], 5],
        ["bob", None, None, None, None, None],
    ]
    assert [c["type"] for c in answer["columns"]] == [
        *("VARCHAR", "DECIMAL(20,4)", "DATE", "TIMESTAMP WITH TIME ZONE", "VARCHAR[]", "INTEGER"),
    ]
    described = shop.query.ask("DESCRIBE kept")["rows"]
    assert [row[0] for row in described] == KEPT.names


def test_every_column_name_of_a_table_can_be_queried(shop: TableQuerySetup) -> None:
    names = [
        "a.b",
        "c`d",
        "x y",
        'q"r',
        "s't",
        "select",
        "é日本",
        "%s",
        "%(n)s",
        "a\\b",
        ";--",
        " ",
        "(n)",
        "a'b\"c`d.e",
        "ж" * 31 + "x",  # 63 bytes, as many as Postgres allows
    ]
    schema = pa.schema([(name, pa.int64()) for name in names])
    row = {name: n for n, name in enumerate(names)}
    shop.keep(row, name="odd", schema=schema, unique_key=tuple(names))
    answer = shop.query.ask("SELECT * FROM odd")
    assert [column["name"] for column in answer["columns"]] == names
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    matching = " AND ".join(f"{name} = {n}" for n, name in enumerate(quoted))
    found = shop.query.ask(f"SELECT {', '.join(quoted)} FROM odd WHERE {matching}")
    assert answer["rows"] == found["rows"] == [list(range(len(names)))]
    for n, name in enumerate(quoted):  # the filter reads a column that the result does not have
        counted = shop.query.ask(f"SELECT count(*) FROM odd WHERE {name} = {n} AND {name} < 99")
        assert counted["rows"] == [[1]], name


def test_tables_and_files_join(shop: TableQuerySetup) -> None:
    answer = shop.query.ask(
        "SELECT b.block_number, k.who, count(*) FROM blocks b JOIN logs l USING (block_number)"
        " JOIN kept k USING (block_number) JOIN logs m USING (block_number, log_index) GROUP BY ALL"
    )
    assert answer["rows"] == [[5, "ann", 3]]


def test_a_dataset_without_a_table_has_no_data_yet(shop: TableQuerySetup) -> None:
    assert shop.query.refusal("SELECT * FROM empty", 409)["code"] == "no_data_yet"


def test_only_the_needed_columns_and_blocks_are_read_from_postgres(shop: TableQuerySetup) -> None:
    some = "block_number > 990 AND block_number < 995"
    run = shop.run(f"SELECT sum(log_index) FROM logs WHERE {some}")
    assert read_all(run) == b"[12]"
    (scan,) = run.budget.scans
    assert scan == "block_number,log_index WHERE block_number >= 991 AND block_number <= 994"


def test_rows_without_a_block_number_are_found_despite_filter_pushdown(
    shop: TableQuerySetup,
) -> None:
    for condition, expected in (
        ("block_number IS NULL", b'["bob"]'),
        ("block_number = 5 OR block_number IS NULL", b'["ann"],["bob"]'),
        ("block_number < 3", b""),
    ):
        run = shop.run(f"SELECT who FROM kept WHERE {condition} ORDER BY who")
        assert read_all(run) == expected, condition


_BLOCK = ds.field("block_number")
_COMPARED = st.builds(
    lambda op, n: {
        "=": n == _BLOCK,
        "<": n > _BLOCK,
        ">=": n <= _BLOCK,
        "in": _BLOCK.isin([n, n + 7]),
        "other": ds.field("x") == n,
    }[op],
    st.sampled_from(["=", "<", ">=", "in", "other"]),
    st.integers(-5, 45),
)
_FILTERS = st.recursive(
    _COMPARED,
    lambda some: (
        st.tuples(some, some).map(lambda p: p[0] & p[1])
        | st.tuples(some, some).map(lambda p: p[0] | p[1])
        | some.map(lambda one: ~one)
    ),
    max_leaves=5,
)


@given(_FILTERS)
def test_every_matching_row_is_inside_the_range_that_is_read(chosen: Any) -> None:
    schema = pa.schema([("block_number", pa.int64()), ("x", pa.int64())])
    rows = [{"block_number": n, "x": x} for n in range(41) for x in (0, 20, None)]
    table = pa.Table.from_pylist(rows, schema=schema)
    matched = table.filter(chosen)["block_number"].to_pylist()
    span = narrow_block_range(chosen, schema, 0, 40)
    assert all(span is not None and span[0] <= n <= span[1] for n in matched)


_X, _S, _B = ds.field("x"), ds.field("s"), ds.field("b")
_BYTES = st.sampled_from([b"", b"\x00", b"\xa0", b"\xa0\x01", b"12"])
_TEXTS = st.sampled_from(["", "a", "A0", "12", "it's", 'say "x"', "back\\slash", "new\nline", "é"])
_VALUES = st.recursive(
    st.integers(-3, 3).map(lambda n: n == _X)
    | st.lists(st.integers(-3, 3), min_size=1).map(_X.isin)
    | st.integers(-3, 3).map(lambda n: n > _X)
    | _TEXTS.map(lambda text: text == _S)
    | st.lists(_TEXTS, min_size=1).map(_S.isin)
    | _TEXTS.map(lambda text: text <= _S)
    | _BYTES.map(lambda content: pa.scalar(content) == _B)
    | st.lists(_BYTES, min_size=1).map(_B.isin)
    | st.sampled_from([_X, _S, _B]).map(lambda field: field.is_null()),
    lambda some: (
        st.tuples(some, some).map(lambda p: p[0] & p[1])
        | st.tuples(some, some).map(lambda p: p[0] | p[1])
        | some.map(lambda one: ~one)
    ),
    max_leaves=5,
)


@given(_VALUES)
def test_every_matching_row_has_one_of_the_values_that_are_read(chosen: Any) -> None:
    schema = pa.schema([("x", pa.int64()), ("s", pa.string()), ("b", pa.binary())])
    texts = ["", "a", "A0", "12", "it's", 'say "x"', "back\\slash", "new\nline", "é", None]
    contents = [b"", b"\x00", b"\xa0", b"\xa0\x01", b"12", b"\xff", None]
    rows = [
        {"x": x, "s": s, "b": b} for x in (*range(-4, 5), None) for s in texts for b in contents
    ]
    matched = pa.Table.from_pylist(rows, schema=schema).filter(chosen)
    for column in schema.names:
        if values := find_values(chosen, schema, column):
            assert set(matched[column].to_pylist()) <= set(values)


@pytest.mark.parametrize(
    ("condition", "pushed", "rows"),
    [
        ("address = from_hex('01')", "address IN (b'\\x01',)", 1000),
        ("address IN (from_hex('01'), from_hex('02'))", "address IN (b'\\x01', b'\\x02')", 2000),
        ("address = from_hex('01') OR address = from_hex('ff')", None, 1000),
        ("address = from_hex('01') AND log_index = 2", None, 0),
        ("address <> from_hex('01')", None, 2000),
        ("address > from_hex('01')", None, 1000),
    ],
)
def test_values_of_columns_are_compared_by_postgres(
    shop: TableQuerySetup, condition: str, pushed: str | None, rows: int
) -> None:
    run = shop.run(f"SELECT count(*) FROM logs WHERE {condition}")
    assert read_all(run) == b"[%d]" % rows
    (scan,) = run.budget.scans
    assert pushed is None or scan.endswith(f"WHERE {pushed}"), scan
    if condition.startswith("address <>"):
        assert scan.endswith("WHERE true"), scan


def test_one_table_is_read_twice_with_different_filters(shop: TableQuerySetup) -> None:
    run = shop.run(
        "SELECT count(*), min(b.log_index) FROM logs a JOIN logs b USING (block_number)"
        " WHERE a.address = from_hex('00') AND b.address = from_hex('02')"
    )
    assert read_all(run) == b"[1000,2]"
    assert sum("IN (b'\\x00',)" in scan for scan in run.budget.scans) == 1
    assert sum("IN (b'\\x02',)" in scan for scan in run.budget.scans) == 1


def test_texts_are_compared_by_postgres_and_numerics_are_not(shop: TableQuerySetup) -> None:
    run = shop.run("SELECT who, amount::DOUBLE FROM kept WHERE who = 'ann' AND amount = -12.34")
    assert read_all(run) == b'["ann",-12.34]'
    (scan,) = run.budget.scans
    assert "who IN ('ann',)" in scan and "amount IN" not in scan


def test_all_scans_of_a_query_use_one_snapshot(shop: TableQuerySetup) -> None:
    """A reorganisation happens between two scans."""
    run = shop.run("SELECT (SELECT count(*) FROM logs), (SELECT max(block_number) FROM logs)")
    snapshot_taken = threading.Event()
    taken = run._open_snapshot

    @contextmanager
    def rewritten() -> Generator[Any]:
        with taken() as snapshot:
            shop.follow(500, 1200)
            snapshot_taken.set()
            yield snapshot

    run._open_snapshot = rewritten  # type: ignore[method-assign]
    try:
        assert read_all(run) == b"[3000,999]" and snapshot_taken.is_set()
    finally:
        with psycopg.connect(shop.data) as conn:
            conn.execute(f"DELETE FROM {shop.table('logs')} WHERE block_number > 999")


def test_the_amount_of_data_read_from_tables_is_limited(shop: TableQuerySetup) -> None:
    with pytest.raises(QueryTooLarge, match="read fewer blocks or columns"):
        read_all(shop.run("SELECT * FROM logs", table_bytes=1000))
    few = "SELECT count(*) FROM logs WHERE block_number < 10"
    assert read_all(shop.run(few, table_bytes=1000)) == b"[30]"


def test_a_query_that_waits_for_postgres_ends_with_its_client(shop: TableQuerySetup) -> None:
    waiting = """
        SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
         WHERE NOT l.granted AND d.datname = current_database()
    """
    with psycopg.connect(shop.data) as holder:
        holder.execute(f"LOCK TABLE {shop.table('logs')} IN ACCESS EXCLUSIVE MODE")
        body = json.dumps({"sql": "SELECT count(*) FROM logs"}).encode()
        token = {"Authorization": f"Bearer {shop.query.secrets.user_token}"}
        with shop.query.send_raw("/v1/query", body, token):
            eventually(lambda: sql(shop.data, waiting))
        eventually(lambda: not sql(shop.data, waiting))
    assert shop.query.ask("SELECT count(*) FROM logs")["rows"] == [[3000]]


def test_a_service_without_postgres_data_reports_no_data(
    shop: TableQuerySetup, secrets: Secrets, tmp_path: Path
) -> None:
    with running_query_service(secrets, shop.warehouse.dsns, tmp_path, data_dsn=None) as live:
        assert live.refusal("SELECT * FROM kept", 409)["code"] == "no_data_yet"


def test_unreachable_postgres_data_is_reported_as_an_outage(
    shop: TableQuerySetup, secrets: Secrets, tmp_path: Path
) -> None:
    unreachable = "host=127.0.0.1 port=1 user=nobody dbname=nothing connect_timeout=2"
    with running_query_service(
        secrets, shop.warehouse.dsns, tmp_path, data_dsn=unreachable
    ) as live:
        assert live.refusal("SELECT * FROM kept", 503)["code"] == "unavailable"


def test_the_services_role_reads_datasets_and_nothing_else(shop: TableQuerySetup) -> None:
    version = uuid4()
    shape = buffers.BufferTable(
        hot_table(uuid4(), version), version, (("n", "long", False),), ("n",)
    )
    with connection.connect(shop.data) as conn, connection.transaction(conn):
        write_rows(conn, shape, 1, [(7,)])
    with psycopg.connect(shop.warehouse.dsns.data_reader, autocommit=True) as reader:
        for table in (shop.table("logs"), shop.table("kept"), shape.table):
            assert reader.execute(f"SELECT count(*) FROM {table}").fetchone()
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                reader.execute(f"DELETE FROM {table}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"BEGIN; SET TRANSACTION READ WRITE; DELETE FROM {table}")
            reader.execute("ROLLBACK")
        for other in ("followers", "append_fences", "buffer_batches", "queue.messages"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"SELECT * FROM {other}")
    views = [DatasetView("b", [], [], shape.table)]
    run = QueryRun("SELECT * FROM b", views, QueryLimits(10, "100MB", 1), shop.data)
    read_all(run)
    assert [c["name"] for c in run.summary.columns] == ["n", "org_id"]


def test_a_new_generation_is_visible_once_it_is_current(shop: TableQuerySetup) -> None:
    text = DAG.replace("VERSION", "2")
    shop.warehouse.deploy(text)  # without partitions the generation is current immediately
    assert shop.query.refusal("SELECT * FROM kept", 409)["code"] == "no_data_yet"
    shop.keep({**ANN, "who": "cid"})
    assert shop.query.ask("SELECT who FROM kept")["rows"] == [["cid"]]
    shop.warehouse.deploy(DAG)
    assert shop.query.ask("SELECT who FROM kept ORDER BY 1")["rows"] == [["ann"], ["bob"]]
