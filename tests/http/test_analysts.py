"""`trace query`, its prompt and the Python client, over a real Dispatcher and Query Service."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from support.cli import TRACE, run_command
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from support.services.query import LiveQuery, Warehouse, running_query_service
from support.terminal import Terminal
from support.waiting import eventually
from trace_etl import client as trace_client
from trace_etl.cli.main import app
from trace_etl.client import packages
from trace_etl.client.client import Client, NotScannable
from trace_etl.client.result_stream import ARROW_START
from trace_etl.data import hot_tables
from trace_etl.data.connection import connect as psycopg_connection
from trace_etl.data.connection import transaction
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.model.column_stream import MAGIC
from trace_etl.model.storage import hot_table

DAG = """
name: analysts
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: request}}]
    outputs: [blocks, transactions, logs]
  - name: compact
    operator: parquet_compact
    inputs: [{from: {job: ingest, output: blocks}}]
    outputs: [blocks]
    config: {size: 1000}
  - name: follow
    operator: block_follower
    inputs: [{from: {job: request}}]
    outputs: [hot_logs]
  - name: totals
    operator: sql
    inputs: [{from: {job: ingest, output: blocks}}]
    outputs: [totals]
    config: {sql: SELECT 1 AS n}
    update_strategy: append
    unique_key: [n]
publish:
  - {name: blocks, from: {job: ingest, output: blocks}, description: All blocks.}
  - {name: transactions, from: {job: ingest, output: transactions}}
  - {name: compacted, from: {job: compact, output: blocks}}
  - {name: tip, storage: postgres, from: {job: follow, output: hot_logs}}
  - {name: totals, storage: postgres, from: {job: totals, output: totals}}
  - name: logs
    from: {job: ingest, output: logs}
    schema:
      - {name: block_number, type: long, comment: The block of the log.}
      - {name: note, type: string, comment: Written by hand.}
"""
FAILS_LATE = """
    SELECT CASE WHEN range = 300000 THEN error('row 300000 is bad') ELSE md5(range::VARCHAR) END
      FROM range(400000)
"""
SPIN = "SELECT count(*) FROM range(10000000000) a, range(1000) b"


@dataclass(frozen=True)
class Analyst:
    """A home with a connection, for the command line and the client."""

    home: Path
    warehouse: Warehouse
    query: LiveQuery
    dispatcher: Live

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TRACE_HOME": str(self.home), "XDG_STATE_HOME": str(self.home)}

    def trace(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command(*words, TRACE_HOME=str(self.home), XDG_STATE_HOME=str(self.home))

    def out(self, *words: str) -> str:
        done = self.trace(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def count_free_slots(self) -> int:
        """Return how many more queries the Query Service could run now."""
        with self.query.client() as http:
            metrics = http.get("/metrics").text
        return int(float(metrics.split("\ntrace_query_slots_free ")[1].split()[0]))

    def commit_blocks(self, start: int, end: int) -> None:
        numbers = pa.array(range(start, end + 1), pa.int64())
        hashes = pa.array([bytes([n % 256]) * 32 for n in range(start, end + 1)], pa.binary())
        rows = pa.table({"block_number": numbers, "block_hash": hashes, "gas_used": numbers})
        columns = [
            {"name": "block_number", "type": "bigint"},
            {"name": "block_hash", "type": "binary"},
            {"name": "gas_used", "type": "bigint"},
        ]
        self.warehouse.commit("blocks", start, end, rows, schema=columns)


@pytest.fixture(scope="module")
def analyst(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Analyst]:
    home, objects = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects) as running,
        running_query_service(secrets, dsns, objects) as query,
    ):
        ports = {"api": running.cfg.api_port, "internal": 1, "query": query.cfg.query_port}
        fields = vars(connection.describe(Home(home), **ports, pid=1)) | {
            "ca": str(secrets.ca),
            "user_token": str(secrets.directory / "user.jwt"),
        }
        connection.write(home / "connection.json", connection.StackConnection(**fields))
        made = Analyst(home, Warehouse(dsns, objects), query, running)
        made.warehouse.deploy(DAG)
        made.commit_blocks(0, 99)
        yield made


@pytest.fixture
def client(analyst: Analyst) -> Generator[Client]:
    with trace_client.connect(analyst.home) as opened:
        yield opened


# --- trace query ------------------------------------------------------------------------------


def test_every_format_is_written_to_a_file_with_all_rows(analyst: Analyst, tmp_path: Path) -> None:
    sql = "SELECT range AS n, md5(range::VARCHAR) AS h FROM range(25000)"
    expected = pl.DataFrame(analyst.query.ask(sql, limit=10_000)["rows"], orient="row")
    for name in ("rows.parquet", "rows.arrow", "rows.csv", "rows.json"):
        file = tmp_path / name
        done = analyst.trace("query", sql, "-o", str(file))
        assert done.returncode == 0 and f"to {file} in" in done.stderr, done.stderr
        rows = read_file(file)
        assert rows.height == 25_000
        assert rows.head(10_000).rows() == expected.rows()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["rows.parquet", "rows.arrow", "rows.csv", "rows.json"]
    )


def read_file(file: Path) -> pl.DataFrame:
    if file.suffix == ".arrow":
        return pl.read_ipc_stream(file)
    if file.suffix == ".json":
        answer = json.loads(file.read_text())
        return pl.DataFrame(answer["rows"], schema=["n", "h"], orient="row")
    return pl.read_parquet(file) if file.suffix == ".parquet" else pl.read_csv(file)


def test_a_query_that_fails_leaves_the_file_as_it_was(analyst: Analyst, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    done = analyst.trace("query", FAILS_LATE, "-o", str(file))
    assert done.returncode == 1 and "row 300000 is bad" in done.stderr
    assert list(tmp_path.iterdir()) == []
    file.write_text("kept")
    assert analyst.trace("query", FAILS_LATE, "-o", str(file)).returncode == 1
    assert analyst.trace("query", "SELECT nothing", "-o", str(file)).returncode == 1
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "kept"


def test_an_interrupted_query_leaves_no_file(analyst: Analyst, tmp_path: Path) -> None:
    sql = "SELECT repeat('x', 1000) FROM range(1000000000)"
    command = [*TRACE, "query", sql, "-o", str(tmp_path / "rows.csv")]
    with subprocess.Popen(command, env=analyst.environment, stderr=subprocess.PIPE) as running:
        eventually(lambda: any(p.stat().st_size for p in tmp_path.iterdir()), "rows are written")
        running.send_signal(signal.SIGINT)
        assert running.wait(120) != 0
        assert running.stderr is not None and b"Traceback" not in running.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_the_output_may_stop_early(analyst: Analyst) -> None:
    sql = "SELECT range FROM range(1000000000)"
    command = [*TRACE, "query", sql, "--format", "csv"]
    with subprocess.Popen(
        command, env=analyst.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == b'"range"\n'
        running.stdout.close()
        assert running.wait(120) == 0 and running.stderr.read() == b""


def test_a_bad_option_is_refused_with_the_fix(analyst: Analyst, tmp_path: Path) -> None:
    for words, message in (
        (["-o", str(tmp_path / "rows.txt")], "give --format"),
        (["-o", str(tmp_path / "no" / "rows.csv")], "No such file or directory"),
        (["--param", "x"], "write NAME=VALUE"),
        (["--param", "x:day=1"], "the types are string, int, float, bool, null"),
        (["--param", "x:int=one"], "'one' is not of type int"),
    ):
        environment = {"TRACE_HOME": str(analyst.home)}
        done = CliRunner().invoke(app, ["query", "SELECT 1", *words], env=environment)
        assert done.exit_code == 1 and message in done.stderr, done.stderr


# --- the prompt ---------------------------------------------------------------------------------


@pytest.fixture
def prompt(analyst: Analyst) -> Generator[Terminal]:
    terminal = Terminal([*TRACE, "query"], analyst.environment)
    try:
        terminal.expect("trace>")
        yield terminal
    finally:
        terminal.close()


def test_the_prompt_answers_completes_and_cancels(analyst: Analyst, prompt: Terminal) -> None:
    prompt.type("SELECT max(block_number)\rFROM bloc")
    prompt.expect("dataset")  # the menu of completions
    prompt.type("\t;\r")
    prompt.expect("1 row in")
    prompt.expect("trace>")
    prompt.type("FROM blocks SELECT max(gas_u")
    prompt.expect("blocks · bigint")
    prompt.type("\t) AS most;\r")
    prompt.expect("most")
    prompt.expect("99")
    prompt.expect("trace>")
    prompt.type("\\d blocks\r")
    prompt.expect("Number of the block.")
    prompt.expect("trace>")
    prompt.type("SELECT\rnocolumn FROM blocks;\r")
    prompt.expect('error: 2:1: sql: Binder Error: Referenced column "nocolumn" not found')
    prompt.expect("^")
    prompt.expect("trace>")
    prompt.type(f"{SPIN};\r")
    free = analyst.query.cfg.query_slots - 1
    eventually(lambda: analyst.count_free_slots() == free, "the query runs")
    prompt.type("\x03")
    prompt.expect("canceled")
    prompt.type("SELECT 6 * 7 AS answer;\r")
    prompt.expect("42")
    prompt.expect("trace>")
    prompt.type("\x04")
    assert prompt.wait() == 0
    history = analyst.home / "trace" / "query_history"
    assert "SELECT 6 * 7 AS answer;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_a_wide_table_fits_the_terminal(analyst: Analyst) -> None:
    sql = "SELECT block_number, block_hash AS a, block_hash AS b FROM blocks ORDER BY 1 LIMIT 2"
    terminal = Terminal([*TRACE, "query", sql], analyst.environment, columns=80)
    try:
        assert terminal.wait() == 0
        terminal.expect("2 rows in")
        lines = terminal.shown.splitlines()
        assert max(len(line.rstrip()) for line in lines) <= 80
        assert len([line for line in lines if "0x00" in line]) == 1, "a row is one line"
        assert "…0000" in terminal.shown
    finally:
        terminal.close()


# --- the Python client ----------------------------------------------------------------------------


def test_a_result_can_be_read_as_arrow_polars_pandas_or_rows(client: Client) -> None:
    result = client.query("SELECT block_number, block_hash FROM blocks ORDER BY 1")
    assert result.arrow().schema.names == ["block_number", "block_hash"]
    assert result.polars().shape == (100, 2) and len(result.pandas()) == 100
    assert result.rows()[3] == {"block_number": 3, "block_hash": b"\x03" * 32}
    assert result.pinned[0]["dataset"] == "blocks"


def test_whole_columns_are_sent_as_they_are_stored(analyst: Analyst, client: Client) -> None:
    """The result is the same as that of the same query as an Arrow stream."""

    def fetch(sql: str, form: str) -> bytes:
        with analyst.query.client() as http:
            answer = http.post("/v1/query", json={"sql": sql, "format": form})
            assert answer.status_code == 200, answer.text
            return answer.content

    stored = (
        "FROM blocks",
        "SELECT * FROM blocks; --",
        "SELECT block_hash, block_number FROM blocks",
    )
    computed = (
        "SELECT * FROM blocks WHERE block_number > 3",
        "SELECT * FROM blocks LIMIT 3",
        "SELECT DISTINCT block_number FROM blocks ORDER BY 1",
        "SELECT block_number AS n FROM blocks",
        "SELECT * EXCLUDE (block_hash) FROM blocks",
        "SELECT * FROM blocks AS b (n)",
        "SELECT blocks.block_hash FROM blocks",
        "SELECT BLOCK_NUMBER FROM blocks",
        "SELECT block_number, block_number FROM blocks",
        "SELECT * FROM blocks, range(2)",
        "SELECT * FROM blocks USING SAMPLE 100 PERCENT",
        "WITH blocks AS (SELECT 7 AS n) FROM blocks",
    )
    for sql in (*stored, *computed):
        start = fetch(sql, "columns")[:4]
        assert start == (MAGIC if sql in stored else ARROW_START), sql
        expected = pa.ipc.open_stream(fetch(sql, "arrow")).read_all()
        result = client.query(sql)
        assert result.arrow().equals(expected) and result.arrow().schema.equals(expected.schema), (
            sql
        )
        assert sum(batch.num_rows for batch in client.query(sql).batches()) == len(expected)


def test_a_later_result_does_not_change_an_earlier_one(client: Client) -> None:
    """The client receives the stored columns of every result into the same memory."""
    first = client.query("FROM blocks").arrow()
    (memory,) = client._stack.results.memory._kept
    copy = first.take(list(range(len(first))))
    memoryview(memory).cast("B")[:] = bytes(memory.size)
    assert client.query("SELECT gas_used FROM blocks").arrow().equals(copy.select(["gas_used"]))
    assert client._stack.results.memory._kept == [memory]
    assert first.equals(copy)


def test_batches_are_read_while_the_query_runs(client: Client) -> None:
    batches = client.query("SELECT range FROM range(1000000000000)").batches()
    assert next(batches)["range"][0].as_py() == 0
    batches.close()  # ends the query
    assert client.query("SELECT 1 AS one").rows() == [{"one": 1}]


def test_a_connection_that_the_service_has_closed_is_replaced(client: Client) -> None:
    """The service closes idle connections: the next query must not fail because of that."""
    assert client.query("SELECT 1 AS n").rows() == [{"n": 1}]
    (idle,) = client._stack.results._idle
    idle.sock.shutdown(socket.SHUT_RDWR)
    assert client.query("SELECT 2 AS n").rows() == [{"n": 2}]
    (other,) = client._stack.results._idle
    assert other is not idle
    assert client.query("SELECT 3 AS n").rows() == [{"n": 3}]
    assert client._stack.results._idle == [other]  # a whole result leaves its connection usable


def test_one_connection_carries_results_of_any_length(client: Client) -> None:
    """An answer of a known length, as JSON is, ended its connection: each query paid for TLS."""
    stack = client._stack
    used: list[object] = []
    for n in range(3):
        assert stack.query(f"SELECT {n} AS n")["rows"] == [[n]]
        used += stack.results._idle
        assert client.query(f"SELECT {n} AS n").rows() == [{"n": n}]
        used += stack.results._idle
    assert len(used) == 6 and len(set(used)) == 1


def test_errors_say_what_was_wrong(analyst: Analyst, client: Client) -> None:
    with pytest.raises(trace_client.RequestRejected, match="did you mean 'blocks'"):
        client.query("FROM blokcs").arrow()
    with pytest.raises(trace_client.RequestRejected, match="row 300000 is bad"):
        client.query(FAILS_LATE).arrow()
    with pytest.raises(trace_client.RequestRejected, match="row 300000 is bad"):
        for _ in client.query(FAILS_LATE).batches():
            pass
    with pytest.raises(trace_client.NotRunning):
        trace_client.connect(analyst.home / "nothing")
    with pytest.raises(ValueError, match="api_url, query_url and token"):
        trace_client.connect(api_url="https://127.0.0.1:1")


def test_a_client_connects_by_url(analyst: Analyst) -> None:
    with trace_client.connect(
        api_url=f"https://127.0.0.1:{analyst.dispatcher.cfg.api_port}",
        query_url=analyst.query.url,
        token=analyst.query.secrets.user_token,
        ca=analyst.query.secrets.ca,
    ) as opened:
        assert "blocks" in [dataset.name for dataset in opened.datasets()]


def test_a_scan_reads_exactly_the_files_of_one_snapshot(analyst: Analyst, client: Client) -> None:
    before = client.scan("blocks")
    expected = client.query("FROM blocks ORDER BY block_number").polars()
    analyst.commit_blocks(100, 149)
    (uncommitted,) = list(analyst.warehouse.objects.rglob("blocks_100_149.parquet"))
    pq.write_table(pq.read_table(uncommitted), uncommitted.with_name("blocks_150_199.parquet"))
    assert_frame_equal(before.sort("block_number").collect(), expected)
    after = client.scan("blocks").filter(pl.col("block_number") >= 100)
    assert after.select(pl.len()).collect().item() == 50


def test_a_dataset_without_files_cannot_be_scanned(client: Client) -> None:
    with pytest.raises(NotScannable, match=r'client.query\("FROM transactions"\)'):
        client.scan("transactions")


def test_a_missing_extra_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(packages.importlib, "import_module", find_nothing)
    with pytest.raises(trace_client.MissingPackage, match=r'pip install "trace-etl\[polars\]"'):
        client.scan("blocks")


# --- schemas ----------------------------------------------------------------------------------------


def test_columns_have_types_and_comments(analyst: Analyst, client: Client) -> None:
    columns = {column.name: column for column in client.schema("blocks")}
    assert list(columns) == ["block_number", "block_hash", "gas_used"], "as written"
    assert columns["gas_used"].type == "bigint"
    assert columns["gas_used"].comment == "Gas that all transactions of the block used."
    declared = {column.name: column for column in client.schema("transactions")}
    assert declared["value_f64"].type == "double", "known before the first row"
    kept = {column.name: column for column in client.schema("compacted")}
    assert kept["timestamp"].comment and kept["timestamp"].type == "bigint"
    noted = {column.name: column for column in client.schema("logs")}
    assert noted["block_number"].comment == "The block of the log.", "the DAG file wins"
    assert client.dataset("blocks").description == "All blocks."


def test_columns_of_tables_in_postgres_are_known(analyst: Analyst, client: Client) -> None:
    tip = {column.name: column for column in client.schema("tip")}
    assert (tip["topic0"].type, tip["block_number"].comment) == ("binary", "Number of the block.")
    assert client.schema("totals") == [], "the deploy did not analyse it, and it has no table yet"
    assert "not known before its first rows" in analyst.out("dataset", "totals", "--schema")
    columns = pa.schema(
        [
            ("block_number", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("amount", pa.decimal128(20, 4)),
        ]
    )
    with psycopg_connection(analyst.warehouse.dsns.data) as conn, transaction(conn):
        hot_tables.ensure_table(conn, hot_table(*analyst.warehouse.generation("totals")), columns)
    assert [(column.name, column.type) for column in client.schema("totals")] == [
        ("block_number", "bigint"),
        ("tags", "array<string>"),
        ("amount", "decimal(20,4)"),
    ]
    with pytest.raises(NotScannable, match="a table of Postgres data"):
        client.scan("totals")


def test_query_parameters_are_bound_by_name_and_position(analyst: Analyst, client: Client) -> None:
    sql = (
        "SELECT $first AS first, count(*) AS n FROM blocks WHERE block_number BETWEEN $first AND 9"
    )
    assert client.query(sql, {"first": 3}).rows() == [{"first": 3, "n": 7}]
    assert client.query("SELECT ? AS a, ? AS b", ["x", None]).rows() == [{"a": "x", "b": None}]
    assert (
        analyst.out("query", sql, "--param", "first=3", "--format", "csv").splitlines()[1] == "3,7"
    )
    typed = analyst.out("query", "SELECT $v AS v", "--param", "v:string=007", "--format", "csv")
    assert typed == '"v"\n"007"\n'


def test_the_command_line_shows_the_columns(analyst: Analyst) -> None:
    text = analyst.out("dataset", "blocks", "--schema")
    assert "gas_used" in text and "Gas that all transactions of the block used." in text
    answer = json.loads(analyst.out("dataset", "blocks", "--schema", "--json"))
    assert answer["columns"][0] == {
        "name": "block_number",
        "type": "bigint",
        "comment": "Number of the block.",
    }
