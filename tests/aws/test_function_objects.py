"""A function queries, reads and writes objects on S3 with the same calls as on files, and within its scope."""

import io
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import jwt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.data.buffered import Producer
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.ministack import REGION, Ministack
from support.services.postgres import Templates, copied
from support.services.query import LiveQuery, running_query_service
from trace_etl.sandbox.broker.broker import AttemptIdentity, Broker, PlatformClients
from trace_etl.sdk.connection import BrokerConnection, CallFailed
from trace_etl.sdk.task import Task


@dataclass(frozen=True)
class Stack:
    """A Dispatcher and a Query Service whose objects are on S3."""

    bench: Bench
    query: LiveQuery
    aws: Ministack

    @contextmanager
    def open_task(self, attempt: Attempt, directory: Path) -> Generator[Task]:
        """Run the broker of an attempt, as its worker does."""
        identity = AttemptIdentity(
            UUID(attempt.task_id),
            attempt.number,
            UUID(attempt.claimed["lease_token"]),
            lambda: attempt.token,
        )
        with self.query.client() as http:
            clients = PlatformClients(self.bench.http, http)
            broker = Broker(directory / "broker.sock", clients, identity)
            yield Task(attempt.claimed["task"], BrokerConnection(str(broker.path)))
            broker.close()

    def commit_output(self, producer: Attempt, rows: pa.Table) -> None:
        """Write the rows of a producer and complete it."""
        content, ref = io.BytesIO(), producer.output["storage_ref"]
        pq.write_table(rows, content)
        size = len(content.getvalue())
        files = [{"name": "out_0_9.parquet", "rows": rows.num_rows, "bytes": size}]
        columns = [{"name": "n", "type": "bigint"}]
        marker = {"files": files, "rows": rows.num_rows, "bytes": size, "schema": columns}
        objects = {files[0]["name"]: content.getvalue(), "_SUCCESS": json.dumps(marker).encode()}
        bucket, _, prefix = f"{ref['bucket']}/{ref['prefix']}".partition("/")
        for name, body in objects.items():
            self.aws.call("s3", "put_object", Bucket=bucket, Key=prefix + name, Body=body)
        published = {k: producer.output[k] for k in ("dataset_uuid", "dataset_version")}
        reply = self.bench.complete(producer, datasets_published=[published | {"storage_ref": ref}])
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def make_reader(self, rows: pa.Table) -> Attempt:
        """Return an attempt whose input `out` has these rows."""
        dag = self.bench.dag()
        self.commit_output(self.bench.attempt(dag=dag), rows)
        (task_id,) = self.bench.waiting(dag, "after")
        return self.bench.claimed(task_id)


@pytest.fixture(scope="module")
def stack(
    aws: Ministack, secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Stack]:
    """Run both services; STS gives a role to attempts."""
    with pytest.MonkeyPatch.context() as patch, copied(templates) as dsns:
        for variable, value in _make_user(aws).items():
            patch.setenv(variable, value)
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        objects: dict[str, Any] = {
            "objects_url": f"s3://{aws.make_bucket()}/data",
            "s3_endpoint": aws.url,
            "s3_region": REGION,
        }
        roles = {"sts_endpoint": aws.url, "credentials_role_arn": aws.make_role()}
        unused = tmp_path_factory.mktemp("unused")
        with (
            live(secrets, dsns, unused, **objects, **roles) as running,
            bench(running) as made,
            running_query_service(
                secrets,
                dsns,
                unused,
                dispatcher_url=f"https://127.0.0.1:{running.cfg.internal_port}",
                tls_ca=secrets.ca,
                task_query_result_bytes=12 * 2**20,  # more than one part of an upload
                **objects,
            ) as query,
        ):
            yield Stack(made, query, aws)


def _make_user(aws: Ministack) -> dict[str, str]:
    actions = ["sts:AssumeRole", "s3:*"]
    return aws.make_user({"Effect": "Allow", "Action": actions, "Resource": "*"}).environment


@pytest.fixture
def attempt(stack: Stack) -> Attempt:
    return stack.bench.attempt()


@pytest.fixture
def task(stack: Stack, attempt: Attempt, tmp_path: Path) -> Generator[Task]:
    with stack.open_task(attempt, tmp_path) as opened:
        yield opened


def test_a_function_uses_objects_on_s3_within_its_scope(
    stack: Stack, attempt: Attempt, task: Task
) -> None:
    other = stack.bench.attempt()
    scope = jwt.decode(attempt.token, options={"verify_signature": False})["s3"]
    task.put_object(f"{task.scratch_url}a/b.txt", b"content")
    assert task.get_object(f"{task.scratch_url}a/b.txt") == b"content"
    task.put_object(f"{task.export_url}report.csv", b"1,2")
    _put_once(task, scope["write_prefixes"][0] + "rows.jsonl")
    with pytest.raises(CallFailed) as refused:
        _put_once(task, scope["write_prefixes"][0] + "rows.jsonl")
    assert refused.value.code == "precondition_failed"
    with pytest.raises(CallFailed, match="does not exist"):
        task.get_object(f"{task.scratch_url}a/missing.txt")
    foreign = jwt.decode(other.token, options={"verify_signature": False})["s3"]
    for url in (
        foreign["scratch_prefix"] + "a",
        foreign["write_prefixes"][0] + "a",
        task.scratch_url.replace("/1/", "/2/") + "a",
        task.scratch_url.replace("/1/", "/10/") + "a",
        "s3://other-bucket/data/a/b",
    ):
        with pytest.raises(CallFailed) as refused:
            task.put_object(url, b"x")
        assert refused.value.code in ("forbidden", "not_found"), url
        with pytest.raises(CallFailed) as refused:
            task.get_object(url)
        assert refused.value.code == "forbidden", url
    with pytest.raises(CallFailed):  # outputs and exports can only be written
        task.get_object(f"{task.export_url}report.csv")


def test_a_function_publishes_rows_on_s3(stack: Stack, aws: Ministack, tmp_path: Path) -> None:
    producer = Producer(stack.bench, "alerts")
    producer.deploy("one")
    attempt = producer.attempt("one")
    with stack.open_task(attempt, tmp_path) as task:
        assert task.publish([{"id": 1}, {"id": 2}]) == 2
        assert task.publish([{"id": 3}]) == 1
    query = "SELECT batch_uri, record_count FROM buffer_publishes WHERE task_id = %s ORDER BY 1"
    published = stack.bench.rows(query, attempt.task_id)
    assert [row["record_count"] for row in published] == [2, 1]
    written = []
    for row in published:
        bucket, _, key = row["batch_uri"].removeprefix("s3://").partition("/")
        written.append(aws.call("s3", "get_object", Bucket=bucket, Key=key)["Body"])
    assert written == [b'{"id": 1}\n{"id": 2}\n', b'{"id": 3}\n']


def _put_once(task: Task, url: str) -> None:
    """Write an object as `publish` does."""
    task._put(url, b"{}", {"If-None-Match": "*"})


def test_an_attempt_that_has_ended_gets_no_credentials(
    stack: Stack, attempt: Attempt, task: Task
) -> None:
    assert stack.bench.complete(attempt, "Failed", retryable=False).status_code == 200
    with pytest.raises(CallFailed) as refused:
        task.put_object(f"{task.scratch_url}late", b"x")
    assert refused.value.code == "lease_lost"


def test_a_task_queries_its_input_on_s3_and_gets_a_large_result_as_an_object(
    stack: Stack, tmp_path: Path
) -> None:
    reader = stack.make_reader(pa.table({"n": pa.array(range(6), pa.int64())}))
    with stack.open_task(reader, tmp_path) as task:
        assert task.query("SELECT sum(n) AS n FROM out WHERE n > ?", [2]) == [{"n": 12}]
        with pytest.raises(CallFailed, match="is not an input of this task"):
            task.query("SELECT * FROM other")
        sql = "SELECT n, range AS i FROM out, range(5000)"
        large = ask(stack, reader, sql)
        answer = large.json()
        assert large.status_code == 200 and answer["rows"] is None, large.text
        uri = answer["object"]["uri"]
        assert uri.startswith(task.scratch_url)
        content = task.get_object(uri)
        assert len(content) == answer["object"]["bytes"]
        found = pq.read_table(io.BytesIO(content)).to_pylist()
        pairs = [{"n": n, "i": i} for n in range(6) for i in range(5000)]
        assert sorted(found, key=lambda r: (r["n"], r["i"])) == pairs
        bucket, _, prefix = task.scratch_url.removeprefix("s3://").partition("/")
        # The upload of a result that becomes too large has begun when it is refused.
        refused = ask(stack, reader, "SELECT md5(concat(n, range)) AS a FROM out, range(300000)")
    assert (refused.status_code, refused.json()["code"]) == (422, "query_too_large"), refused.text
    listed = stack.aws.call("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix)["Contents"]
    assert [f"s3://{bucket}/{item['Key']}" for item in listed] == [uri]
    assert not stack.aws.call("s3", "list_multipart_uploads", Bucket=bucket).get("Uploads")


def ask(stack: Stack, attempt: Attempt, sql: str) -> httpx.Response:
    with stack.query.client() as http:
        headers = {"X-Trace-Task-Capability": attempt.token}
        return http.post("/v1/task/query", json={"sql": sql}, headers=headers)
