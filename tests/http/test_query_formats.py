"""Results of the Query Service as Arrow, Parquet, CSV and streamed JSON, over real HTTPS."""

import csv
import io
import json
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.services.dispatcher import Secrets
from support.services.query import LiveQuery, QuerySetup, Warehouse, running_query_service
from support.waiting import eventually

DAG = """
name: formats
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks, transactions, logs]
publish:
  - {name: blocks, from: {job: ingest, output: blocks}}
"""
ALL_TYPES = """
    SELECT range AS n, -range::SMALLINT AS small, range * 12345678901234567890 AS huge,
           range / 7 AS ratio, range % 2 = 0 AS flag, CASE WHEN range % 3 > 0 THEN 'é,"' || range END AS t,
           unhex(md5(range::VARCHAR)) AS hash, (range * 0.01)::DECIMAL(20, 4) AS amount,
           DATE '2024-02-29' + range::INTEGER AS day, TIMESTAMPTZ '2024-02-29 12:00:00.000001+00' AS at,
           TIMESTAMP '1999-12-31 23:59:59' AS plain, TIME '10:00' AS hour, [range, NULL] AS list,
           {'a': range, 'b': 'x'} AS pair, MAP {'k': range} AS map, 'low'::ENUM ('low', 'high') AS level,
           uuid '5b1f3a0e-0000-4000-8000-000000000000' AS id
      FROM range(5000)
"""
ENDLESS = "SELECT range, repeat('x', 1000) AS x FROM range(1000000000000)"
FAILS_LATE = """
    SELECT CASE WHEN range = 300000 THEN error('row 300000 is bad') ELSE md5(range::VARCHAR) END
      FROM range(400000)
"""


LIMITS = {"query_memory": "64MB", "query_slots": 2}


@pytest.fixture(scope="module")
def warehouse(reading: QuerySetup) -> Warehouse:
    numbers = pa.table({"block_number": pa.array(range(100_000), pa.int64())})
    reading.warehouse.commit("blocks", 0, 99_999, numbers)
    return reading.warehouse


@pytest.fixture(scope="module")
def query(reading: QuerySetup, warehouse: Warehouse) -> LiveQuery:
    return reading.query


def fetch(query: LiveQuery, sql: str, form: str, **fields: Any) -> httpx.Response:
    with query.client() as http:
        body = {"sql": sql, "format": form, **fields}
        return http.post("/v1/query", json=body, timeout=120)


def expected(sql: str) -> pa.Table:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        return engine.execute(sql).to_arrow_table()


# --- formats ----------------------------------------------------------------------------------


def test_an_arrow_stream_has_every_type_and_value(query: LiveQuery) -> None:
    answer = fetch(query, ALL_TYPES, "arrow")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.equals(expected(ALL_TYPES).schema)
    assert table.combine_chunks().equals(expected(ALL_TYPES).combine_chunks())


def test_a_parquet_file_has_every_type_and_value(query: LiveQuery) -> None:
    answer = fetch(query, ALL_TYPES, "parquet")
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    table = pq.read_table(io.BytesIO(answer.content))
    assert table.to_pylist() == expected(ALL_TYPES).to_pylist()


def test_csv_shows_the_same_values_as_json(query: LiveQuery) -> None:
    answer = fetch(query, ALL_TYPES, "csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    lines = list(csv.reader(io.StringIO(answer.text)))
    rows = query.ask(ALL_TYPES)["rows"]
    assert len(lines) == len(rows) + 1 == 5001
    shown = dict(zip(lines[0], lines[2], strict=True))
    row = dict(zip(lines[0], rows[1], strict=True))
    for name in ("n", "small", "huge", "ratio", "hash", "amount", "day", "t", "level", "id"):
        assert shown[name] == str(row[name]), name
    assert (shown["flag"], shown["at"]) == ("false", "2024-02-29 12:00:00.000001Z")
    for name in ("list", "pair", "map"):
        assert json.loads(shown[name]) == row[name]


def test_csv_tells_an_empty_text_from_null(query: LiveQuery) -> None:
    answer = fetch(query, "SELECT '' AS a, NULL::VARCHAR AS b, NULL::BLOB AS c", "csv")
    assert answer.text == '"a","b","c"\n"",,\n'


def test_streamed_json_is_the_same_reply_with_all_rows(query: LiveQuery) -> None:
    sql = "SELECT block_number, block_number / 2 AS half FROM blocks ORDER BY 1"
    inline, answer = query.ask(sql), fetch(query, sql, "json", stream=True).json()
    assert (inline["row_count"], inline["truncated"]) == (10_000, True)
    assert (answer["row_count"], answer["truncated"]) == (100_000, False)
    assert answer["rows"][:10_000] == inline["rows"] and len(answer["rows"]) == 100_000
    for field in ("columns", "pinned"):
        assert answer[field] == inline[field]
    assert set(answer) == set(inline)


@pytest.mark.parametrize("form", ["json", "arrow", "parquet", "csv"])
def test_a_result_without_rows_is_complete(query: LiveQuery, form: str) -> None:
    answer = fetch(query, "SELECT block_number FROM blocks WHERE false", form, stream=True)
    if form == "json":
        assert answer.json()["rows"] == [] and answer.json()["columns"][0]["name"] == "block_number"
    elif form == "csv":
        assert answer.text == '"block_number"\n'
    else:
        assert read_table(answer, form).schema.names == ["block_number"]
        assert read_table(answer, form).num_rows == 0


def read_table(answer: httpx.Response, form: str) -> pa.Table:
    if form == "arrow":
        return pa.ipc.open_stream(answer.content).read_all()
    return pq.read_table(io.BytesIO(answer.content))


@pytest.mark.parametrize("form", ["json", "arrow", "parquet", "csv"])
def test_a_limit_cuts_a_streamed_result(query: LiveQuery, form: str) -> None:
    answer = fetch(query, "SELECT range FROM range(50000)", form, limit=20_001, stream=True)
    if form == "json":
        assert (len(answer.json()["rows"]), answer.json()["truncated"]) == (20_001, True)
    elif form == "csv":
        assert len(answer.text.splitlines()) == 20_002
    else:
        assert read_table(answer, form).num_rows == 20_001


def test_the_pinned_generations_are_in_a_header(query: LiveQuery) -> None:
    answer = fetch(query, "SELECT * FROM blocks", "arrow")
    assert json.loads(answer.headers["trace-pinned"]) == query.ask("FROM blocks")["pinned"]


def test_a_type_that_a_format_cannot_hold_is_refused(query: LiveQuery) -> None:
    for sql, form in (
        ("SELECT 1::BIT AS odd", "arrow"),
        ("SELECT [{'a': 1::UHUGEINT}] AS odd", "parquet"),
        ("SELECT INTERVAL 3 MONTH AS odd", "parquet"),
        ("SELECT '10:00:00+01'::TIMETZ AS odd", "csv"),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT AS odd", "arrow"),
    ):
        answer = fetch(query, sql, form)
        assert answer.status_code == 422, answer.text
        assert (
            "'odd'" in answer.json()["detail"] and "cast it to VARCHAR" in answer.json()["detail"]
        )
    assert fetch(query, "SELECT INTERVAL 3 MONTH AS fine", "arrow").status_code == 200


def test_an_error_before_the_first_bytes_is_a_problem_document(query: LiveQuery) -> None:
    for sql in ("SELECT nocolumn FROM blocks", "SELECT CAST('x' AS INTEGER)", "FROM nothing"):
        answer = fetch(query, sql, "arrow")
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"


# --- large results ------------------------------------------------------------------------------


@contextmanager
def opened(query: LiveQuery, sql: str, form: str) -> Generator[httpx.Response]:
    body = {"sql": sql, "format": form, "stream": True}
    with query.client() as http, http.stream("POST", "/v1/query", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        yield answer


def list_processes() -> list[psutil.Process]:
    """List the query processes of the service, which runs in this process."""
    servers = [
        child
        for child in psutil.Process().children()
        if "trace_etl.query.processes.fork_server" in child.cmdline()
    ]
    return [process for server in servers for process in server.children()]


def measure_cpu() -> dict[psutil.Process, float]:
    return {process: process.cpu_times().user for process in list_processes()}


def waits(process: psutil.Process) -> bool:
    """Whether all threads wait, for longer than one look at them takes."""
    before = process.num_ctx_switches()
    states = [
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path(f"/proc/{process.pid}/task").glob("*/stat")
    ]
    return set(states) == {"S"} and process.num_ctx_switches() == before


def measure_memory() -> int:
    """Return the memory of this process and all query processes."""
    return sum(p.memory_info().rss for p in (psutil.Process(), *list_processes()))


def test_a_result_larger_than_the_memory_of_both_processes_is_streamed(query: LiveQuery) -> None:
    """350 MB of rows, while the query may use 64 MB."""
    before, most, received = measure_memory(), 0, 0
    with opened(query, "SELECT range, repeat('x', 1000) AS x FROM range(350000)", "arrow") as it:
        for number, piece in enumerate(it.iter_raw()):
            received += len(piece)
            if number % 500 == 0:
                most = max(most, measure_memory())
    assert received > 350_000_000
    assert most - before < 250e6


@pytest.mark.parametrize("form", ["json", "arrow", "parquet", "csv"])
def test_an_error_in_the_middle_aborts_the_result_and_can_be_asked_for(
    query: LiveQuery, secrets: Secrets, warehouse: Warehouse, form: str
) -> None:
    received = 0
    with (
        pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)),
        opened(query, FAILS_LATE, form) as answer,
    ):
        for piece in answer.iter_raw():
            received += len(piece)
    assert received, "the error came after the first bytes"
    path = f"/v1/query/{answer.headers['trace-query-id']}/failure"
    with query.client() as http:
        problem = http.get(path).json()
    assert problem["code"] == "invalid" and "row 300000 is bad" in problem["errors"][0]["message"]
    with query.client(warehouse.new_reader(secrets)) as http:
        assert http.get(path).status_code == 404


def test_a_query_waits_for_a_client_that_does_not_read_and_ends_with_it(query: LiveQuery) -> None:
    before = measure_cpu()
    with opened(query, ENDLESS, "arrow") as answer:
        pieces = answer.iter_raw(10_000_000)  # ending the iterator would close the connection
        next(pieces)
        worked = measure_cpu()
        busy = max(worked, key=lambda process: worked[process] - before.get(process, 0))
        eventually(lambda: waits(busy))  # a query that computes ahead would stay busy
    busy.wait(120)


def test_the_time_of_a_slow_reader_does_not_count_but_has_an_end(
    secrets: Secrets, warehouse: Warehouse
) -> None:
    limits = {"query_seconds": 2.0, "query_stream_seconds": 6.0}
    with running_query_service(secrets, warehouse.dsns, warehouse.objects, **limits) as query:
        with opened(query, "SELECT repeat('x', 1000) FROM range(20000)", "csv") as answer:
            # A second query uses up the same time while no client reads the first one.
            spin = "SELECT count(*) FROM range(10000000000) a, range(1000) b"
            assert "ran longer than 2 s" in fetch(query, spin, "csv").json()["detail"]
            assert len(answer.read()) > 20_000_000
        with opened(query, ENDLESS, "csv") as answer, query.client() as http:
            path = f"/v1/query/{answer.headers['trace-query-id']}/failure"
            failed = eventually(lambda: (f := http.get(path)).status_code == 200 and f)
            assert failed.json()["code"] == "query_timed_out"
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                answer.read()


def test_a_streamed_result_over_http_1_0_is_refused(query: LiveQuery) -> None:
    """There the end of the connection is the end of the body, also of an aborted one."""
    body = json.dumps({"sql": "SELECT 1", "format": "csv"}).encode()
    context = ssl.create_default_context(cafile=str(query.secrets.ca))
    with (
        socket.create_connection(("127.0.0.1", query.cfg.query_port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as channel,
    ):
        channel.sendall(
            b"POST /v1/query HTTP/1.0\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
            % (query.secrets.user_token.encode(), len(body), body)
        )
        answer = b"".join(iter(lambda: channel.recv(65536), b""))
    assert b" 422 " in answer.splitlines()[0] and b"HTTP/1.1" in answer.splitlines()[-1]
