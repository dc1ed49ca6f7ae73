"""The Query Service over real HTTPS, Postgres and DuckDB, including attempts to escape it."""

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import duckdb
import httpx
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.services.dispatcher import Secrets
from support.services.postgres import Templates, sql
from support.services.query import (
    ORG,
    LiveQuery,
    QuerySetup,
    Warehouse,
    opened_warehouse,
    running_query_service,
    settings,
)
from support.sql.duckdb_corpus import HOSTILE, fill_in
from support.waiting import eventually
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.query.sql.sql_guard import is_refused

DAG = """
name: reading
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks, transactions, logs]
publish:
  - {name: blocks, from: {job: ingest, output: blocks}}
  - {name: transfers, from: {job: ingest, output: logs}}
"""


def blocks(start: int, end: int) -> pa.Table:
    numbers = list(range(start, end + 1))
    return pa.table(
        {
            "block_number": pa.array(numbers, pa.int64()),
            "hash": pa.array([bytes([n % 256]) * 4 for n in numbers], pa.binary()),
        }
    )


def commit_blocks(warehouse: Warehouse) -> None:
    warehouse.commit("blocks", 0, 99, blocks(0, 99))
    warehouse.commit("blocks", 100, 199, blocks(100, 199))


@pytest.fixture(scope="module")
def reading(reading: QuerySetup) -> QuerySetup:
    """Shared by tests that only read."""
    commit_blocks(reading.warehouse)
    return reading


@pytest.fixture(scope="module")
def query(reading: QuerySetup) -> LiveQuery:
    return reading.query


@pytest.fixture(scope="module")
def changing(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[QuerySetup]:
    """Separate databases for tests that commit."""
    objects = tmp_path_factory.mktemp("changing")
    with opened_warehouse(secrets, templates, objects, DAG) as setup:
        yield setup


@pytest.fixture
def warehouse(changing: QuerySetup) -> Warehouse:
    """The datasets that a test may commit to, with the blocks only."""
    sql(changing.warehouse.dsns.state, "DELETE FROM partitions")
    commit_blocks(changing.warehouse)
    return changing.warehouse


@pytest.fixture
def fresh(changing: QuerySetup, warehouse: Warehouse) -> LiveQuery:
    return changing.query


# --- answers ----------------------------------------------------------------------------------


def test_a_select_reads_every_committed_partition_and_returns_the_pinned_versions(
    reading: QuerySetup,
) -> None:
    answer = reading.query.ask(
        "SELECT count(*) AS n, min(block_number), max(block_number) FROM blocks"
    )
    assert answer["rows"] == [[200, 0, 199]]
    assert answer["columns"][0] == {"name": "n", "type": "BIGINT"}
    assert (answer["row_count"], answer["truncated"]) == (1, False)
    assert answer["elapsed_ms"] > 0
    version = reading.warehouse.generation("blocks")[1]
    assert answer["pinned"] == [
        {"dataset": "blocks", "dataset_version": str(version), "partitions": 2}
    ]


def test_a_partition_committed_later_is_in_the_next_answer(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    assert fresh.ask("SELECT count(*) FROM blocks")["rows"] == [[200]]
    warehouse.commit("blocks", 200, 249, blocks(200, 249))
    assert fresh.ask("SELECT count(*) FROM blocks")["rows"] == [[250]]


def test_uncommitted_files_are_not_read(fresh: LiveQuery, warehouse: Warehouse) -> None:
    directory = warehouse.commit("blocks", 300, 309, blocks(300, 309))
    stray = directory / "stray_300_309.parquet"
    stray.write_bytes((directory / "blocks_300_309.parquet").read_bytes())
    assert fresh.ask("SELECT count(*) FROM blocks WHERE block_number >= 300")["rows"] == [[10]]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT block_number FROM blocks ORDER BY 1 LIMIT 1",
        "FROM blocks SELECT min(block_number)",
        "SELECT min(block_number) FROM Blocks;",
        "WITH first AS (SELECT min(block_number) AS n FROM blocks) SELECT n FROM first",
        "WITH blocks AS (SELECT * FROM blocks WHERE block_number = 0) "
        "SELECT block_number FROM blocks",
        "SELECT min(b) FROM (SELECT block_number AS b FROM blocks) AS t",
        "SELECT 0 WHERE EXISTS (FROM blocks)",
        "SELECT min(block_number) FROM blocks WHERE block_number IN (SELECT range FROM range(5))",
        "WITH RECURSIVE up AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM up WHERE n < 3) "
        "SELECT min(n) FROM up",
        'SELECT min(block_number) FROM "main"."blocks"',
        "SELECT i FROM unnest([0]) AS t(i)",
        "VALUES (0)",
    ],
)
def test_every_form_of_a_single_select_is_answered(query: LiveQuery, text: str) -> None:
    assert query.ask(text)["rows"] == [[0]]


def test_describe_shows_the_columns(query: LiveQuery) -> None:
    rows = query.ask("DESCRIBE blocks")["rows"]
    assert [row[:2] for row in rows] == [["block_number", "BIGINT"], ["hash", "BLOB"]]


def test_values_are_encoded_for_json(query: LiveQuery) -> None:
    (row,) = query.ask(
        """SELECT 'ab'::BLOB, 9007199254740992, 9007199254740993,
                  2000000000000000000000000000000::HUGEINT, 1.50::DECIMAL(10,2),
                  TIMESTAMP '2020-01-02 03:04:05', DATE '2020-01-02',
                  TIMESTAMPTZ '2020-01-02 03:04:05+02', 'nan'::DOUBLE, NULL, true, [1, 2],
                  {'a': 1.5::DECIMAL(3,1)}, map {'k': 'ab'::BLOB}, INTERVAL 90 SECOND,
                  '5b1f3a0e-0000-4000-8000-000000000000'::UUID"""
    )["rows"]
    assert row == [
        "0x6162",
        9007199254740992,
        "9007199254740993",
        str(2 * 10**30),
        "1.50",
        "2020-01-02T03:04:05",
        "2020-01-02",
        "2020-01-02T01:04:05+00:00",
        "NaN",
        None,
        True,
        [1, 2],
        {"a": "1.5"},
        {"k": "0x6162"},
        "P0DT90S",
        "5b1f3a0e-0000-4000-8000-000000000000",
    ]


def test_a_result_above_the_row_limit_is_truncated_and_marked(query: LiveQuery) -> None:
    some = query.ask("SELECT block_number FROM blocks ORDER BY 1 DESC", limit=3)
    assert some["rows"] == [[199], [198], [197]]
    assert (some["row_count"], some["truncated"]) == (3, True)
    exact = query.ask("SELECT range FROM range(3)", limit=3)
    assert (exact["row_count"], exact["truncated"]) == (3, False)
    most = query.ask("SELECT range FROM range(20000)")
    assert (most["row_count"], most["truncated"]) == (10_000, True)


def test_a_large_result_is_truncated_at_ten_mebibytes(query: LiveQuery) -> None:
    with query.client() as http:
        text = "SELECT repeat('x', 2000) FROM range(1000000000)"
        answer = http.post("/v1/query", json={"sql": text})
    assert answer.json()["truncated"]
    assert 9 * 2**20 < len(answer.content) < 11 * 2**20


def test_a_dataset_without_rows_still_answers_with_its_columns(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    columns = [
        {"name": "block_number", "type": "bigint"},
        {"name": "value", "type": "decimal(38,0)"},
        {"name": "data", "type": "binary"},
    ]
    warehouse.commit("transfers", 0, 99, None, schema=columns)
    answer = fresh.ask("SELECT * FROM transfers")
    assert answer["rows"] == []
    assert [c["type"] for c in answer["columns"]] == ["BIGINT", "DECIMAL(38,0)", "BLOB"]
    assert fresh.ask("SELECT count(*), sum(value) FROM transfers")["rows"] == [[0, None]]


def test_partitions_without_rows_do_not_hide_those_with_rows(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    warehouse.commit("blocks", 200, 299, blocks(0, 99).slice(0, 0))
    answer = fresh.ask("SELECT count(*) FROM blocks")
    assert answer["rows"] == [[200]]
    assert answer["pinned"][0]["partitions"] == 3


@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "no rows"])
def test_every_column_name_can_be_read(
    fresh: LiveQuery, warehouse: Warehouse, has_rows: bool
) -> None:
    names = ["a`b", "a.b", 'a"b', "", " ", "é", "select"]
    schema = [{"name": name, "type": "bigint"} for name in names]
    rows = pa.table([[n] for n in range(len(names))], names=names)
    warehouse.commit("transfers", 0, 9, rows if has_rows else None, schema=schema)
    answer = fresh.ask("SELECT * FROM transfers")
    assert [c["name"] for c in answer["columns"]] == [name or "C3" for name in names]
    assert answer["rows"] == ([list(range(len(names)))] if has_rows else [])
    some = 'SELECT "a`b", "a.b", "a""b" FROM transfers WHERE "a.b" = 1'
    assert fresh.ask(some)["rows"] == ([[0, 1, 2]] if has_rows else [])


TEXT_COLUMNS = [
    {"name": "block_number", "type": "bigint"},
    {"name": "a b", "type": "string"},
    {"name": "amount", "type": "decimal(20,2)"},
    {"name": "seen", "type": "timestamp"},
    {"name": "ok", "type": "boolean"},
]
CSV_FILE = """"block_number","a b","amount","seen","ok"
1,"007",12345678901234567.50,2026-01-02 03:04:05.000006Z,true
2,"say ""yes"",\nplease",,,
3,"",-1.00,2026-01-02 03:04:05.000006Z,false
"""


def test_a_dataset_of_csv_files_has_the_types_of_its_columns(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    """Nothing is guessed: "007" stays a text, an empty text is no null, and decimals keep their digits."""
    directory = warehouse.commit("transfers", 0, 9, blocks(0, 2), schema=TEXT_COLUMNS)
    [file] = directory.glob("*.parquet")
    file.with_suffix(".csv").write_text(CSV_FILE)
    marker = (directory / "_SUCCESS").read_text()
    (directory / "_SUCCESS").write_text(marker.replace(".parquet", ".csv"))
    answer = fresh.ask("SELECT * FROM transfers ORDER BY block_number")
    assert [row[1] for row in answer["rows"]] == ["007", 'say "yes",\nplease', ""]
    types = [c["type"] for c in answer["columns"]]
    assert types == ["BIGINT", "VARCHAR", "DECIMAL(20,2)", "TIMESTAMP WITH TIME ZONE", "BOOLEAN"]
    exact = (
        "SELECT amount::VARCHAR, epoch_us(seen) % 1000000, ok FROM transfers WHERE \"a b\" = '007'"
    )
    assert fresh.ask(exact)["rows"] == [["12345678901234567.50", 6, True]]
    nulls = "SELECT count(*) - count(amount), count(*) - count(seen) FROM transfers"
    assert fresh.ask(nulls)["rows"] == [[1, 1]]


# --- refusals that help ---------------------------------------------------------------------


def test_a_dataset_without_data_is_reported_as_such(query: LiveQuery) -> None:
    problem = query.refusal("SELECT * FROM transfers", 409)
    assert problem["code"] == "no_data_yet"
    assert "'transfers' has no data yet" in problem["detail"]


def test_an_unknown_dataset_is_reported_with_its_position_and_a_suggestion(
    query: LiveQuery,
) -> None:
    problem = query.refusal("SELECT *\n  FROM blokcs, nothing_like_it")
    first, second = problem["errors"]
    assert first["message"] == "no dataset 'blokcs' is published; did you mean 'blocks'?"
    assert (first["line"], first["column"]) == (2, 8)
    assert second["message"] == (
        "no dataset 'nothing_like_it' is published; the published datasets are blocks, transfers"
    )


def test_a_syntax_error_is_reported_with_its_position(query: LiveQuery) -> None:
    (fault,) = query.refusal("SELECT 'é',\n SELEC 1")["errors"]
    assert (fault["field"], fault["line"]) == ("sql", 2)
    assert "syntax error" in fault["message"]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DELETE FROM blocks", "DELETE cannot be run here"),
        ("SELECT 1; DROP TABLE blocks", "a statement that is not a SELECT cannot be run here"),
        ("SELECT 1; SELECT 2", "has several statements"),
        (" ", "is empty"),
    ],
)
def test_anything_but_one_select_is_refused_with_what_to_send(
    query: LiveQuery, sql: str, problem: str
) -> None:
    (fault,) = query.refusal(sql)["errors"]
    assert fault["message"] == f"{problem}; send one SELECT"


def test_an_unknown_column_is_reported_with_its_position(query: LiveQuery) -> None:
    (fault,) = query.refusal("SELECT count(*),\n       nocolumn FROM blocks")["errors"]
    assert (fault["line"], fault["column"]) == (2, 8)
    assert 'Referenced column "nocolumn" not found' in fault["message"]
    assert "LINE" not in fault["message"]


def test_a_runtime_error_is_reported_as_a_query_error(query: LiveQuery) -> None:
    (fault,) = query.refusal("SELECT CAST('x' || block_number AS INTEGER) FROM blocks")["errors"]
    assert "Could not convert" in fault["message"]


def test_an_error_does_not_advise_to_change_settings(query: LiveQuery) -> None:
    """They are locked."""
    (fault,) = query.refusal("SELECT 1" + "::int" * 2000)["errors"]
    assert fault["message"] == "Max expression depth limit of 1000 exceeded."


def test_an_error_text_has_a_limited_size(query: LiveQuery) -> None:
    (fault,) = query.refusal("SELECT error(repeat('x', 1000000))")["errors"]
    assert len(fault["message"]) < 2100 and "characters)" in fault["message"]
    number = "SELECT error(chr(10) || chr(10) || 'LINE ' || repeat('9', 5000) || ': x' || chr(10) || '^')"
    assert query.refusal(number)["code"] == "invalid"


def test_queries_that_ignore_interrupts_do_not_stop_other_users(
    secrets: Secrets, warehouse: Warehouse
) -> None:
    """Scalar functions cannot be interrupted: only the end of their process stops them."""
    attack = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"
    limits = {"query_slots": 2, "query_seconds": 3.0, "query_wait_seconds": 60.0}
    with (
        running_query_service(secrets, warehouse.dsns, warehouse.objects, **limits) as query,
        ThreadPoolExecutor(2) as threads,
    ):
        attacks = [threads.submit(query.refusal, attack) for _ in range(2)]
        with query.client(warehouse.new_reader(secrets)) as http:
            while wait(attacks, timeout=0.2).not_done:
                answer = http.post("/v1/query", json={"sql": "SELECT count(*) FROM blocks"})
                assert answer.json()["rows"] == [[200]]
        for one in attacks:
            assert one.result()["code"] == "query_timed_out"
            assert "ran longer than 3 s" in one.result()["detail"]
        assert query.ask("SELECT 1")["rows"] == [[1]], "the slots are free again"


def test_a_query_that_needs_too_much_memory_or_processor_time_is_stopped(
    secrets: Secrets, warehouse: Warehouse
) -> None:
    limits = {"query_memory": "50MB", "query_cpu_seconds": 1}
    with running_query_service(secrets, warehouse.dsns, warehouse.objects, **limits) as query:
        text = "SELECT list(a.range::VARCHAR || b.range) FROM range(10000) a, range(10000) b"
        past_the_engine = "SELECT len(list_resize([1], 1000000000))"
        for large in (text, past_the_engine):
            problem = query.refusal(large)
            assert problem["code"] == "query_too_large" and "50MB" in problem["detail"]
        problem = query.refusal("SELECT count(*) FROM range(10000000000) a, range(1000) b")
        assert problem["code"] == "query_timed_out"
        assert "used more than 1 s of processor time" in problem["detail"]
        assert query.ask("SELECT 1")["rows"] == [[1]]


def test_queries_above_the_slot_limit_are_refused_with_retry_after(
    secrets: Secrets, warehouse: Warehouse
) -> None:
    limits = {"query_slots": 1, "query_wait_seconds": 0.2, "query_seconds": 300.0}
    text = "SELECT count(*) FROM range(10000000000) a, range(1000) b"
    with running_query_service(secrets, warehouse.dsns, warehouse.objects, **limits) as query:
        with _asking(query, text):
            refused = _first_refusal(query)
            assert refused.json()["code"] == "too_many_queries"
            assert "TRACE_QUERY_SLOTS_PER_USER" in refused.json()["detail"]
            assert refused.headers["retry-after"]
        # The client disconnected, so the engine stopped long before its limit of five minutes.
        _wait_for_answer(query)


@contextmanager
def _asking(query: LiveQuery, text: str) -> Generator[None]:
    """Send a query, and disconnect at the end of the block without reading the answer."""
    body = json.dumps({"sql": text})
    head = f"POST /v1/query HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {query.secrets.user_token}\r\n"
    request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    context = ssl.create_default_context(cafile=str(query.secrets.ca))
    plain = socket.create_connection(("127.0.0.1", query.cfg.query_port))
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        connection.sendall(request.encode())
        yield


def _first_refusal(query: LiveQuery) -> httpx.Response:
    with query.client() as http:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            answer = http.post("/v1/query", json={"sql": "SELECT 1"})
            if answer.status_code == 429:
                return answer
    raise AssertionError("never refused")


def _wait_for_answer(query: LiveQuery, text: str = "SELECT 1") -> None:
    with query.client() as http:
        eventually(
            lambda: http.post("/v1/query", json={"sql": text}).status_code == 200,
            "a query is answered",
            within=240,
        )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "sql"),
        ({"sql": ""}, "sql"),
        ({"sql": "SELECT 1", "limit": 0}, "limit"),
        ({"sql": "SELECT 1", "limit": 10_001}, "limit"),
        ({"sql": "SELECT 1", "colour": 1}, "colour"),
        ({"sql": "SELECT '\x00'"}, "sql"),
        ({"sql": "   "}, "sql"),
        ({"sql": "-- nothing"}, "sql"),
        ({"sql": "SELECT 1; SELECT 2"}, "sql"),
        ({"sql": "SELECT " + "[" * 900 + "]" * 900}, "sql"),
        ({"sql": "SELECT * FROM " + "(FROM " * 9000 + "t" + ")" * 9000}, "sql"),
        ({"sql": "SELECT " + "+" * 20_000 + "1"}, "sql"),
        ({"sql": "SELECT " + "+-" * 20_000 + "1"}, "sql"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_malformed_request_names_the_field(query: LiveQuery, body: dict, field: str) -> None:
    with query.client() as http:
        answer = http.post("/v1/query", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field


def test_only_users_of_the_organisation_may_query(query: LiveQuery) -> None:
    with query.client(token="nonsense") as http:
        assert http.post("/v1/query", json={"sql": "SELECT 1"}).status_code == 401
    with httpx.Client(verify=False) as http:
        assert http.post(f"{query.url}/v1/query", json={"sql": "SELECT 1"}).status_code == 401


def test_another_organisations_datasets_do_not_exist(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    other = uuid4()
    sql(warehouse.dsns.state, "INSERT INTO orgs (org_id, name) VALUES (%s, 'other')", (other,))
    warehouse.deploy(DAG.replace("transfers", "secrets"), other)
    assert other != ORG
    assert "no dataset 'secrets' is published" in fresh.refusal("SELECT * FROM secrets")["detail"]


def test_a_lost_database_answers_unavailable_and_comes_back(
    secrets: Secrets, dsns: Dsns, templates: Templates, tmp_path: Path
) -> None:
    own = Warehouse(dsns, tmp_path / "objects")
    own.deploy(DAG)
    commit_blocks(own)
    database = _database(dsns.reader)
    admin = templates.server.admin_dsn()
    with running_query_service(secrets, dsns, own.objects) as query:
        assert query.ask("SELECT count(*) FROM blocks")["rows"] == [[200]]
        sql(admin, f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        sql(
            admin,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            (database,),
        )
        assert query.refusal("SELECT count(*) FROM blocks", 503)["code"] == "unavailable"
        sql(admin, f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
        _wait_for_answer(query, "SELECT count(*) FROM blocks")


def _database(dsn: str) -> str:
    return dict(word.split("=", 1) for word in dsn.split())["dbname"]


# --- attempts to get out --------------------------------------------------------------------


def test_no_hostile_select_is_answered(reading: QuerySetup, tmp_path: Path) -> None:
    objects = reading.warehouse.objects
    file = next(objects.rglob("blocks_0_99.parquet"))
    (tmp_path / "secret.txt").write_text("root:secret")
    pq.write_table(pa.table({"secret": ["root:secret"]}), tmp_path / "secret.parquet")
    before = sorted(objects.rglob("*"))
    with reading.query.client() as http:
        for text in fill_in(HOSTILE[::6], file, tmp_path):  # test_query_pool has all of them
            answer = http.post("/v1/query", json={"sql": text})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), text
            assert "root:" not in answer.text
            assert str(objects) in text or str(objects) not in answer.text
    assert sorted(objects.rglob("*")) == before


def test_a_cte_is_visible_only_in_its_scope(query: LiveQuery) -> None:
    text = """WITH a AS (WITH nothing AS (SELECT 1 AS x) SELECT * FROM nothing)
              SELECT * FROM nothing, blocks"""
    (fault,) = query.refusal(text)["errors"]
    assert "no dataset 'nothing' is published" in fault["message"]
    assert (fault["line"], fault["column"]) == (2, 29)


@pytest.mark.parametrize("schema", ["information_schema", "pg_catalog", "system.main", "temp"])
def test_a_dataset_in_a_schema_is_not_the_dataset(query: LiveQuery, schema: str) -> None:
    assert "by their bare names" in query.refusal(f"SELECT * FROM {schema}.blocks")["detail"]


def test_the_error_for_a_broken_file_does_not_reveal_its_path(
    fresh: LiveQuery, warehouse: Warehouse
) -> None:
    file = warehouse.commit("transfers", 0, 9, blocks(0, 9)) / "transfers_0_9.parquet"
    file.write_bytes(b"PAR1 this is not one PAR1")
    damaged = fresh.refusal("SELECT * FROM transfers", 503)
    file.unlink()
    gone = fresh.refusal("SELECT * FROM transfers", 503)
    (file.parent / "_SUCCESS").unlink()
    for problem in (damaged, gone):
        assert problem["code"] == "unavailable"
        assert str(warehouse.objects) not in json.dumps(problem)


def test_decimals_keep_their_digits(fresh: LiveQuery, warehouse: Warehouse) -> None:
    table = pa.table({"value": pa.array([Decimal(10) ** 37], pa.decimal128(38, 0))})
    warehouse.commit("transfers", 0, 9, table)
    assert fresh.ask("SELECT value FROM transfers")["rows"] == [[str(10**37)]]


def test_the_reading_role_cannot_write(dsns: Dsns) -> None:
    with pytest.raises(psycopg.errors.Error):
        sql(dsns.reader, "INSERT INTO orgs (org_id, name) VALUES (gen_random_uuid(), 'x')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql(dsns.reader, "SELECT * FROM tasks")


def test_every_impure_function_of_the_engine_is_classified() -> None:
    harmless = {"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "error", "now", "today"}
    harmless |= {"transaction_timestamp", "get_current_time", "get_current_timestamp"}
    harmless |= {"current_date", "current_localtime", "current_localtimestamp"}
    impure = duckdb.sql(
        """SELECT DISTINCT function_name FROM duckdb_functions()
            WHERE function_type IN ('scalar', 'macro')
              AND (has_side_effects OR stability <> 'CONSISTENT'
                   OR macro_definition ILIKE '%duckdb!_%' ESCAPE '!'
                   OR macro_definition ILIKE '%pragma!_%' ESCAPE '!')"""
    ).fetchall()
    names = {row[0] for row in impure}
    assert {n for n in names if not is_refused(n)} <= harmless


def test_the_process_serves_until_sigterm(reading: QuerySetup, secrets: Secrets) -> None:
    cfg = settings(secrets, reading.warehouse.dsns, reading.warehouse.objects)
    environment = {
        f"TRACE_{name.upper()}": str(value)
        for name, value in cfg.model_dump().items()
        if name in cfg.model_fields_set
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "trace_etl.query"],
        env={**environment, "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        live = LiveQuery(cfg, secrets)
        _wait_until_up(live, process)
        assert live.ask("SELECT count(*) FROM blocks")["rows"] == [[200]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        log = process.communicate()[1]
    events = [json.loads(line) for line in log.splitlines()]
    assert [event["event"] for event in events] == ["query_ready", "query_answered"]
    assert "SELECT" not in log and secrets.user_token not in log


def _wait_until_up(live: LiveQuery, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    with live.client() as http:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                http.get("/healthz")
                return
            except httpx.ConnectError:
                time.sleep(0.05)
    raise AssertionError("never came up")
