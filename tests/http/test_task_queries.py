"""`POST /v1/task/query`: a task reads its inputs as its token pins them, and nothing else."""

import io
import json
import socket
import ssl
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import psutil
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, _client, live
from support.services.postgres import Templates, copied
from support.services.query import LiveQuery, running_query_service
from support.waiting import eventually
from trace_etl.data import connection, hot_tables
from trace_etl.lite.credentials import keys
from trace_etl.model.storage import hot_table
from trace_etl.query.tasks import task_tokens

DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: follow
    operator: block_follower
    source: {{kind: always_on}}
    outputs: [hot_blocks]
  - name: work
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [out]
    config: {{sql: "SELECT 1 AS n FROM ranges"}}
  - name: after
    operator: sql
    inputs:
      - {{from: {{job: work}}, name: source}}
      - {{from: {{job: work}}, name: chosen, where: {{word: [red, "o'clock"], hash: "0x02"}}}}
      - {{from: {{job: follow}}, name: recent, where: {{hash: ["0x05", "0x06"]}}}}
    outputs: [done]
    config: {{sql: "SELECT 1 AS n FROM source"}}
  - name: other
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [secrets]
    config: {{sql: "SELECT 1 AS n FROM ranges"}}
publish:
  - {{name: {name}_out, from: {{job: work}}}}
  - {{name: {name}_secrets, from: {{job: other}}}}
"""
READER_DAG = """
name: {name}
jobs:
  - name: read
    operator: sql
    inputs: [{{from: {{dataset: {dataset}}}, name: source}}]
    outputs: [seen]
    config: {{sql: "SELECT 1 AS n FROM source"}}
"""
ROWS = pa.table(
    {
        "n": pa.array(range(6), pa.int64()),
        "word": ["red", "blue", "red", "o'clock", "red", "blue"],
        "hash": pa.array([bytes([n % 3]) for n in range(6)], pa.binary()),
    }
)
COLUMNS = [
    {"name": "n", "type": "bigint"},
    {"name": "word", "type": "string"},
    {"name": "hash", "type": "binary"},
]
HOT = pa.schema([("block_number", pa.int64()), ("hash", pa.binary())])


@dataclass(frozen=True)
class Stack:
    """A Dispatcher and a Query Service over the same databases, objects and keys."""

    bench: Bench
    query: LiveQuery
    task_keys: Path

    def ask(self, token: str, sql: str, *, timeout: float = 60.0, **fields: Any) -> httpx.Response:
        with _client(self.query.secrets.ca, self.query.url, {}) as http:
            headers = {"X-Trace-Task-Capability": token} if token else {}
            body = {"sql": sql, **fields}
            return http.post("/v1/task/query", json=body, headers=headers, timeout=timeout)

    def rows(self, attempt: Attempt, sql: str, **fields: Any) -> list[list[Any]]:
        answer = self.ask(attempt.token, sql, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["rows"]

    def deploy(self) -> str:
        name = f"t_{uuid4().hex[:12]}"
        reply = self.bench.user.post("/v1/dags", json={"text": DAG.format(name=name)})
        assert reply.status_code == 200, reply.text
        return name

    def produce(self, name: str, rows: pa.Table, start: int = 0) -> Attempt:
        """Trigger ten blocks and commit their output, as a worker does. Returns the producer."""
        body = {"dag": name, "job": "request", "start": start, "end": start + 9}
        assert self.bench.user.post("/v1/triggers", json=body).status_code == 200
        self.bench.live.drain()
        producer = self.claim(name, "work")
        self.commit_output(producer, rows, start)
        return producer

    def commit_output(self, producer: Attempt, rows: pa.Table, start: int = 0) -> None:
        """Write the rows of a producer and complete it."""
        directory = self.bench.prefix(producer)
        directory.mkdir(parents=True)
        file = directory / f"out_{start}_{start + 9}.parquet"
        pq.write_table(rows, file)
        size = file.stat().st_size
        files = [{"name": file.name, "rows": rows.num_rows, "bytes": size}]
        marker = {"files": files, "rows": rows.num_rows, "bytes": size, "schema": COLUMNS}
        (directory / "_SUCCESS").write_text(json.dumps(marker))
        published = {
            "dataset_uuid": producer.output["dataset_uuid"],
            "dataset_version": producer.output["dataset_version"],
            "storage_ref": producer.output["storage_ref"],
            "range_start": start,
            "range_end": start + 9,
        }
        reply = self.bench.complete(producer, datasets_published=[published])
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def claim(self, name: str, job: str) -> Attempt:
        query = {"dag": name, "job": job, "status": "Queued"}
        (task,) = self.bench.user.get("/v1/tasks", params=query).json()["items"]
        return self.bench.claimed(task["task_id"])

    def reader(self, rows: pa.Table = ROWS) -> tuple[str, Attempt]:
        """Return a DAG and an attempt whose inputs hold these rows."""
        name = self.deploy()
        self.produce(name, rows)
        return name, self.claim(name, "after")

    def audit(self, attempt: Attempt) -> list[dict[str, Any]]:
        return self.bench.rows(
            "SELECT * FROM query_audit WHERE task_id = %s ORDER BY asked_at", attempt.task_id
        )


@pytest.fixture(scope="module")
def stack(
    secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Stack]:
    objects, task_keys = tmp_path_factory.mktemp("objects"), tmp_path_factory.mktemp("keys")
    keys.ensure_task_key(task_keys)
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, task_keys_dir=task_keys) as running,
        bench(running) as own_bench,
        running_query_service(
            secrets,
            dsns,
            objects,
            dispatcher_url=f"https://127.0.0.1:{running.cfg.internal_port}",
            tls_ca=secrets.ca,
            task_query_slots_per_task=1,
            task_query_queue_per_task=1,
            task_query_result_bytes=4 * 2**20,
            task_query_seconds=30,
            query_threads=1,
        ) as query,
    ):
        yield Stack(own_bench, query, task_keys)


def follow(stack: Stack, attempt: Attempt, first: int, last: int) -> None:
    """Write blocks to the hot table of the input `recent`."""
    (entry,) = [i for i in attempt.claimed["task"]["inputs"] if i["name"] == "recent"]
    table = hot_table(UUID(entry["dataset_uuid"]), UUID(entry["dataset_version"]))
    rows = [{"block_number": n, "hash": bytes([n])} for n in range(first, last + 1)]
    dsn = stack.bench.live.dsns.data
    with connection.connect(dsn) as conn, connection.transaction(conn):
        hot_tables.ensure_table(conn, table, HOT)
        hot_tables.copy_rows(conn, table, pa.Table.from_pylist(rows, schema=HOT).to_batches())


# --- answers ----------------------------------------------------------------------------------


def test_inputs_are_tables_by_input_name_and_published_name_with_their_filters(
    stack: Stack,
) -> None:
    name, reader = stack.reader()
    follow(stack, reader, 0, 9)
    assert stack.rows(reader, "SELECT count(*) FROM source") == [[6]]
    assert stack.rows(reader, "SELECT n FROM chosen ORDER BY n") == [[2]]
    hot = "SELECT block_number FROM recent ORDER BY 1"
    assert stack.rows(reader, hot) == [[5], [6]]
    joined = "SELECT count(*) FROM source s JOIN recent r ON r.block_number = s.n"
    assert stack.rows(reader, joined) == [[1]]
    # Two inputs read the published dataset, with different filters: its name alone is ambiguous.
    refused = stack.ask(reader.token, f"SELECT * FROM {name}_out").json()
    assert "name one of them: source, chosen" in refused["detail"]
    producer = stack.produce(name, ROWS, start=10)
    assert producer.task_id != reader.task_id
    assert stack.rows(reader, "SELECT count(*) FROM source") == [[6]]  # pinned at the claim


def test_parameters_are_bound_by_position_and_by_name(stack: Stack) -> None:
    _, reader = stack.reader()
    assert stack.rows(
        reader, "SELECT n FROM source WHERE word = ? AND n > $2", params=["red", 0]
    ) == [
        [2],
        [4],
    ]
    found = stack.rows(reader, "SELECT $w, n FROM source WHERE word = $w", params={"w": "o'clock"})
    assert found == [["o'clock", 3]]
    for params in ({"a": 1}, [1, 2], None):
        answer = stack.ask(reader.token, "SELECT n FROM source WHERE n = ?", params=params)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "params"


def test_answers_are_json_arrow_or_parquet(stack: Stack) -> None:
    _, reader = stack.reader()
    sql = "SELECT n, word, hash FROM source ORDER BY n"
    arrow = stack.ask(reader.token, sql, format="arrow")
    assert arrow.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert pa.ipc.open_stream(arrow.content).read_all().to_pylist() == ROWS.to_pylist()
    parquet = stack.ask(reader.token, sql, format="parquet")
    assert pq.read_table(io.BytesIO(parquet.content)).to_pylist() == ROWS.to_pylist()
    assert json.loads(parquet.headers["trace-pinned"])[0]["dataset"] == "source"


def test_a_large_result_is_an_object_in_the_scratch_prefix(stack: Stack) -> None:
    _, reader = stack.reader()
    sql = "SELECT s.n, r.range AS i FROM source s, range(5000) r"
    claims = jwt.decode(reader.token, options={"verify_signature": False})
    for form in ("json", "arrow"):
        answer = stack.ask(reader.token, sql, format=form).json()
        assert answer["rows"] is None and answer["row_count"] == 30_000
        uri = answer["object"]["uri"]
        assert uri.startswith(claims["s3"]["scratch_prefix"])
        file = stack.bench.live.objects / uri.removeprefix("s3://")
        table = pq.read_table(file)
        assert (table.num_rows, file.stat().st_size) == (30_000, answer["object"]["bytes"])
    limited = stack.ask(reader.token, sql, limit=7).json()
    assert (len(limited["rows"]), limited["truncated"]) == (7, True)


# --- refusals ---------------------------------------------------------------------------------


def signed(stack: Stack, reader: Attempt, **changes: Any) -> str:
    """Sign changed claims with the Dispatcher's own key."""
    claims = jwt.decode(reader.token, options={"verify_signature": False})
    kid = jwt.get_unverified_header(reader.token)["kid"]
    key = (stack.task_keys / f"{kid}.pem").read_bytes()
    return jwt.encode({**claims, **changes}, key, algorithm="ES256", headers={"kid": kid})


def test_another_tasks_dataset_does_not_exist(stack: Stack) -> None:
    name, reader = stack.reader()
    for other in (f"{name}_secrets", "secrets", "tasks", "query_audit"):
        answer = stack.ask(reader.token, f"SELECT * FROM {other}")
        assert answer.status_code == 422
        assert "is not an input of this task; its inputs are" in answer.json()["detail"]


def test_a_token_reads_its_own_version_and_neither_the_older_nor_the_newer_one(
    stack: Stack,
) -> None:
    """Two readers in another DAG run at once: one pinned the old version, the other the new one."""
    name = stack.deploy()
    reader_dag = READER_DAG.format(name=f"r_{name}", dataset=f"{name}_out")
    stack.produce(name, ROWS.slice(0, 2))
    assert stack.bench.user.post("/v1/dags", json={"text": reader_dag}).status_code == 200
    stack.bench.live.drain()
    old = stack.claim(f"r_{name}", "read")
    newer = DAG.format(name=name).replace("SELECT 1 AS n FROM ranges", "SELECT 2 AS n FROM ranges")
    assert stack.bench.user.post("/v1/dags", json={"text": newer}).status_code == 200
    stack.bench.live.drain()
    stack.commit_output(stack.claim(name, "work"), ROWS)
    assert stack.bench.user.post(f"/v1/dags/{name}/promote").status_code == 200
    stack.bench.live.drain()
    new = stack.claim(f"r_{name}", "read")
    versions = [a.claimed["task"]["inputs"][0]["dataset_version"] for a in (old, new)]
    assert versions[0] != versions[1]
    count = "SELECT count(*) FROM source"
    for reader, other, rows in ((old, new, 2), (new, old, 6)):
        assert stack.rows(reader, count) == [[rows]]
        pin = other.claimed["task"]["inputs"][0]["partitions"][0]["storage_ref"]
        path = f"{stack.bench.live.objects}/{pin['bucket']}/{pin['prefix']}*.parquet"
        for sql in (f"SELECT * FROM read_parquet('{path}')", f"SELECT * FROM '{path}'"):
            assert stack.ask(reader.token, sql).status_code == 422
        # The grants of the other token under the signature of this one.
        head, _, signature = reader.token.split(".")
        mixed = f"{head}.{other.token.split('.')[1]}.{signature}"
        assert stack.ask(mixed, count).status_code == 401


def test_a_token_must_be_signed_current_and_of_its_organisation(stack: Stack) -> None:
    _, reader = stack.reader()
    sql = "SELECT count(*) FROM source"
    now = int(datetime.now(UTC).timestamp())
    forged = jwt.encode(
        jwt.decode(reader.token, options={"verify_signature": False}),
        keys.ensure_user_key(stack.query.secrets.directory / "user").read_bytes(),
        algorithm="ES256",
        headers={"kid": jwt.get_unverified_header(reader.token)["kid"]},
    )
    for token in (
        "",
        "nonsense",
        forged,
        stack.query.secrets.user_token,
        signed(stack, reader, exp=now - 1),
        signed(stack, reader, aud="trace.user"),
        signed(stack, reader, sub=f"task:{uuid4()}"),
    ):
        assert stack.ask(token, sql).status_code == 401
    assert stack.ask(signed(stack, reader, org_id=str(uuid4())), sql).status_code == 409
    assert stack.ask(signed(stack, reader), sql).status_code == 200


def test_a_token_is_refused_after_its_attempt(stack: Stack) -> None:
    sql = "SELECT count(*) FROM source"
    reasons: list[str] = []

    def refused(attempt: Attempt) -> None:
        answer = stack.ask(attempt.token, sql)
        assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost"), answer.text
        reasons.append(answer.json()["reason"])

    _, completed = stack.reader()
    assert stack.bench.complete(completed, "Failed", error_message="no").status_code == 200
    refused(completed)
    again = stack.bench.next_attempt(completed)
    refused(completed)
    assert stack.rows(again, sql) == [[6]]
    stack.bench.let_lease_expire(again)
    refused(again)
    stack.bench.reap()
    refused(again)
    _, canceled = stack.reader()
    assert stack.bench.cancel(canceled.task_id).status_code == 200
    refused(canceled)
    assert reasons == ["not_running", "stale_attempt", "lease_expired", "not_running", "canceled"]


def test_a_new_key_is_fetched_and_a_removed_one_is_dropped(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT count(*) FROM source"
    _, before = stack.reader()
    assert stack.rows(before, sql) == [[6]]
    (old,) = stack.task_keys.glob("*.pem")
    new = keys.rotate_task_key(stack.task_keys).signs
    _, after = stack.reader()
    assert jwt.get_unverified_header(after.token)["kid"] == new
    assert stack.rows(after, sql) == [[6]]
    assert stack.rows(before, sql) == [[6]]
    old.unlink()
    monkeypatch.setattr(task_tokens, "MAX_AGE", 0.0)
    monkeypatch.setattr(task_tokens, "_RETRY_INTERVAL", 0.0)
    eventually(lambda: stack.ask(before.token, sql).status_code == 401)
    assert stack.rows(after, sql) == [[6]]


# --- limits and the record --------------------------------------------------------------------

_ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def send_endless(stack: Stack, reader: Attempt) -> socket.socket:
    """Send an endless query on a connection that the test can close."""
    body = json.dumps({"sql": _ENDLESS}).encode()
    headers = {"X-Trace-Task-Capability": reader.token}
    return stack.query.send_raw("/v1/task/query", body, headers)


def read_available(channel: socket.socket) -> bytes:
    """Read what has arrived, without waiting. A session ticket of TLS is no answer."""
    channel.setblocking(False)
    try:
        return channel.recv(65536)
    except ssl.SSLWantReadError:
        return b""


def test_a_task_has_few_concurrent_queries_and_a_disconnect_stops_one(stack: Stack) -> None:
    """One query runs and one waits, in whatever order the three of them arrive."""
    _, reader = stack.reader()
    with ExitStack() as closing:
        sent = [closing.enter_context(send_endless(stack, reader)) for _ in range(3)]
        refused = eventually(lambda: b"".join(map(read_available, sent)))
        assert b" 429 " in refused.splitlines()[0], refused
    assert stack.rows(reader, "SELECT 1") == [[1]]
    outcomes = eventually(
        lambda: len(rows := [r["outcome"] for r in stack.audit(reader)]) == 4 and rows
    )
    assert sorted(outcomes) == ["client_gone", "client_gone", "ok", "too_many_queries"]


def test_a_result_above_the_size_limit_is_refused_and_leaves_no_object(stack: Stack) -> None:
    _, reader = stack.reader()
    sql = "SELECT md5(r.range::VARCHAR) AS a, n FROM source, range(200000) r"
    answer = stack.ask(reader.token, sql)
    assert (answer.status_code, answer.json()["code"]) == (422, "query_too_large"), answer.text
    claims = jwt.decode(reader.token, options={"verify_signature": False})
    prefix = claims["s3"]["scratch_prefix"].removeprefix("s3://")
    assert list((stack.bench.live.objects / prefix).glob("*")) == []


@pytest.fixture(scope="module")
def limited(stack: Stack, secrets: Secrets) -> Generator[Stack]:
    """The same stack with a Query Service that grants little to a query."""
    cfg, running = stack.query.cfg, stack.bench.live
    with running_query_service(
        secrets,
        running.dsns,
        running.objects,
        dispatcher_url=cfg.dispatcher_url,
        tls_ca=secrets.ca,
        task_query_seconds=2,
        query_slots=1,
        query_threads=1,
        query_memory="50MB",
        query_table_bytes=10,
    ) as query:
        yield replace(stack, query=query)


@pytest.mark.parametrize(
    ("sql", "code", "limit"),
    [
        pytest.param(
            "SELECT count(*) FROM range(10000000000) a, range(1000) b",
            "query_timed_out",
            "ran longer than 2 s",
            id="time",
        ),
        pytest.param(
            "SELECT list(range) FROM range(20000000)", "query_too_large", "50MB", id="memory"
        ),
        # An engine with a temporary directory would sort these rows on the disk.
        pytest.param(
            "SELECT md5(range::VARCHAR) AS a, a || a AS b FROM range(2000000) ORDER BY a OFFSET 1999999",
            "query_too_large",
            "50MB",
            id="temporary files",
        ),
        pytest.param("SELECT * FROM recent", "query_too_large", "9.53674e-06 MiB", id="tables"),
    ],
)
def test_a_query_of_a_task_over_a_limit_is_stopped_and_names_it(
    limited: Stack, sql: str, code: str, limit: str
) -> None:
    _, reader = limited.reader()
    follow(limited, reader, 0, 99)
    answer = limited.ask(reader.token, sql)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert limit in answer.json()["detail"]
    assert limited.rows(reader, "SELECT count(*) FROM source") == [[6]]


def test_a_query_of_a_task_runs_on_as_many_threads_as_it_may_use(stack: Stack) -> None:
    _, reader = stack.reader()
    before = read_thread_times()

    def list_spent() -> list[float]:
        """Return the processor time of each thread since the query was sent."""
        return [spent - before.get(key, 0.0) for key, spent in read_thread_times().items()]

    with send_endless(stack, reader):
        spent = eventually(lambda: sum(found := list_spent()) > 1 and found, "the query works")
    assert max(spent) > 0.75 * sum(spent), spent


def read_thread_times() -> dict[tuple[int, int], float]:
    """Return the processor time of each thread of the query processes."""
    servers = [p for p in psutil.Process().children() if "fork_server" in str(p.cmdline())]
    return {
        (process.pid, thread.id): thread.user_time + thread.system_time
        for server in servers
        for process in server.children()
        for thread in process.threads()
    }


def test_every_query_of_a_task_is_recorded(stack: Stack) -> None:
    _, reader = stack.reader()
    stack.rows(reader, "SELECT n FROM source")
    stack.ask(reader.token, "SELECT n FROM elsewhere")
    stack.ask(signed(stack, reader, exp=1), "SELECT n FROM source")
    assert (
        stack.ask(reader.token, "SELECT" + " " * 100_000).status_code == 422
    )  # too long to be read
    assert stack.ask("made-up", "SELECT" + " " * 100_000).status_code == 401
    stack.bench.complete(reader, "Failed", error_message="no")
    stack.ask(reader.token, "SELECT n FROM source")
    outcomes = ["ok", "invalid", "unauthenticated", "invalid", "lease_lost"]
    rows = eventually(lambda: len(found := stack.audit(reader)) == len(outcomes) and found)
    assert [r["outcome"] for r in rows] == outcomes
    version = reader.claimed["task"]["inputs"][0]["dataset_version"]
    assert rows[0]["datasets"] == [{"dataset": "source", "dataset_version": version}]
    assert (rows[0]["row_count"], rows[0]["attempt"], rows[0]["user_name"]) == (6, 1, None)
    listed = stack.bench.user.get("/v1/audit", params={"task_id": reader.task_id}).json()["items"]
    assert [i["outcome"] for i in listed] == outcomes[::-1]
