"""Tasks of a Lambda runtime: the Dispatcher leases them, then invokes their functions once or more."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.bundles import make_zip, push
from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.dispatcher.invocations.invoker import LocalInvoker
from trace_etl.dispatcher.invocations.starter import Invocations
from trace_etl.sandbox.broker.strict_http import (
    StrictAnswer,
    StrictRequest,
    StrictServer,
    listen_at,
)


@dataclass
class Invoked:
    """A worker that only records its invocations, and the Dispatcher's side of them."""

    bench: Bench
    starter: Invocations
    server: StrictServer
    runtime: str
    payloads: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    status: int = 202

    def answer(self, request: StrictRequest) -> StrictAnswer:
        assert request.headers["x-trace-worker-token"] == self.bench.live.secrets.worker_token
        if request.target == "/worker":
            return StrictAnswer(200, json.dumps({"worker_id": "functions:1"}).encode())
        assert request.target == f"/2015-03-31/functions/{self.runtime}/invocations"
        assert request.headers["x-amz-invocation-type"] == "Event"
        self.payloads.append(json.loads(b"".join(request.body)))
        return StrictAnswer(self.status)

    def queue(self, count: int) -> list[str]:
        """Create queued tasks, and give them the Lambda runtime of this test."""
        tasks = self.bench.tasks(count)
        query = "UPDATE tasks SET runtime = %s WHERE task_id = ANY(%s::uuid[]) RETURNING task_id"
        self.bench.rows(query, self.runtime, tasks)
        return tasks

    def start(self) -> int:
        return self.bench.live.run(self.starter.start_once)

    def publish(self) -> None:
        due = "UPDATE outbox SET next_try_at = now() WHERE kind = 'invoke' RETURNING outbox_id"
        self.bench.rows(due)
        publisher = replace(self.bench.live.service.publisher, invocations=self.starter)
        self.bench.live.run(publisher.publish_once)

    def requests(self) -> list[dict[str, Any]]:
        query = "SELECT subject::text, body, last_error FROM outbox WHERE kind = 'invoke'"
        return self.bench.rows(f"{query} AND target = %s ORDER BY outbox_id", self.runtime)

    def running(self) -> list[dict[str, Any]]:
        query = "SELECT * FROM tasks WHERE runtime = %s AND status = 'Running' ORDER BY queued_at"
        return self.bench.rows(query, self.runtime)


@pytest.fixture
def invoked(shared: Bench, tmp_path: Path) -> Iterator[Invoked]:
    runtime = f"lambda_{uuid4().hex[:8]}"
    box: list[Invoked] = []
    path = tmp_path / "invoke.sock"
    server = StrictServer(listen_at(path), lambda request: box[0].answer(request))
    invoker = LocalInvoker(path, lambda: shared.live.secrets.worker_token)
    starter = replace(shared.live.service.invocations, invoker=invoker, slots={runtime: 2})
    box.append(Invoked(shared, starter, server, runtime))
    yield box[0]
    shared.rows("DELETE FROM outbox WHERE target = %s RETURNING outbox_id", runtime)
    shared.live.run(invoker.close)
    server.close()


def test_a_task_is_leased_and_its_function_invoked_with_the_full_payload(invoked: Invoked) -> None:
    [task] = invoked.queue(1)
    assert invoked.start() == 1
    [row] = invoked.running()
    [request] = invoked.requests()
    assert request["body"] == {"lease_token": str(row["lease_token"])}
    assert (row["worker_id"], row["attempt"]) == ("functions:1", 1)
    invoked.publish()
    assert invoked.requests() == []
    [payload] = invoked.payloads
    fetched = invoked.bench.fetch(task).json()["task"]
    assert {name: payload[name] for name in fetched} == fetched
    assert (payload["lease_token"], payload["attempt"]) == (str(row["lease_token"]), 1)
    assert payload["bundle_url"] is None and payload["org_id"] == str(row["org_id"])
    attempt = Attempt({**payload, "task": payload})
    assert invoked.bench.heartbeat(attempt).status_code == 200
    assert invoked.bench.complete(attempt, "Failed", error_code="x").status_code == 200


def test_no_more_tasks_are_leased_than_the_runtime_has_slots(invoked: Invoked) -> None:
    invoked.queue(3)
    assert invoked.start() == 2 and invoked.start() == 0
    invoked.publish()
    wake = invoked.bench.live.service.wake
    wake.invocations.clear()
    first = Attempt({**invoked.payloads[0], "task": invoked.payloads[0]})
    assert invoked.bench.complete(first, "Failed", error_code="x").status_code == 200
    assert wake.invocations.is_set()
    assert invoked.start() == 1
    wake.invocations_wait.clear()


def test_nothing_is_leased_while_the_worker_does_not_answer(invoked: Invoked) -> None:
    invoked.queue(1)
    invoked.server.close()
    assert invoked.start() == 0
    assert invoked.running() == [] and invoked.requests() == []


def test_a_failed_invocation_is_repeated_with_the_same_lease(invoked: Invoked) -> None:
    invoked.queue(1)
    invoked.start()
    invoked.status = 429
    invoked.publish()
    [request] = invoked.requests()
    assert "answered 429" in request["last_error"]
    invoked.status = 202
    invoked.publish()
    assert invoked.requests() == []
    first, second = invoked.payloads
    assert first["lease_token"] == second["lease_token"] == request["body"]["lease_token"]
    assert len(invoked.running()) == 1


def test_one_failed_invocation_does_not_repeat_the_others(invoked: Invoked) -> None:
    invoked.queue(2)
    invoked.start()
    broken, works = invoked.requests()
    query = "UPDATE outbox SET body = '{}' WHERE kind = 'invoke' AND subject = %s::uuid"
    invoked.bench.rows(f"{query} RETURNING outbox_id", broken["subject"])
    invoked.publish()
    invoked.publish()
    assert [payload["task_id"] for payload in invoked.payloads] == [works["subject"]]
    [left] = invoked.requests()
    assert left["subject"] == broken["subject"] and "lease_token" in left["last_error"]


def test_an_attempt_that_has_ended_is_not_invoked(invoked: Invoked) -> None:
    invoked.queue(1)
    invoked.start()
    query = "UPDATE tasks SET status = 'Failed', finished_at = now() WHERE runtime = %s"
    invoked.bench.rows(f"{query} RETURNING task_id", invoked.runtime)
    invoked.publish()
    assert invoked.requests() == [] and invoked.payloads == []


def test_a_wake_up_of_a_lambda_runtime_starts_tasks_instead_of_a_message(invoked: Invoked) -> None:
    [task] = invoked.queue(1)
    query = "SELECT outbox_id FROM enqueue(ARRAY[wake_entry(%s::uuid, %s)])"
    invoked.bench.rows(query, task, invoked.runtime)
    wake = invoked.bench.live.service.wake
    wake.invocations.clear()
    invoked.publish()
    assert wake.invocations.is_set()
    left = "SELECT 1 FROM outbox WHERE kind = 'wake_up' AND subject = %s::uuid"
    assert invoked.bench.rows(left, task) == []


SOURCE = """
name: {dag}
jobs:
  - {{name: hook, source: {{kind: manual}}, outputs: [calls]}}
  - name: receive
    operator: udf
    runtime: lambda
    inputs: [{{from: {{job: hook}}}}]
    outputs: [orders]
    update_strategy: append
    unique_key: [id]
    udf: {{bundle: receive, sha256: {sha256}, handler: rule.handler}}
publish:
  - name: {dag}_orders
    from: {{job: receive}}
    write_mode: buffered
    schema: [{{name: id, type: string, nullable: false}}]
"""


def test_a_source_starts_a_function_with_its_payload(invoked: Invoked) -> None:
    user, dag = invoked.bench.user, f"source_{uuid4().hex[:8]}"
    content = make_zip("def handler(event, context): pass")
    pushed = push(invoked.bench, "receive", content).json()
    text = SOURCE.format(dag=dag, sha256=pushed["sha256"])
    assert user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": dag, "job": "hook", "payload": {"order": 7}}
    assert user.post("/v1/triggers", json=body).status_code == 200
    invoked.bench.live.drain()
    lambdas = replace(invoked, starter=replace(invoked.starter, slots={"lambda": 1}))
    lambdas.runtime = invoked.runtime = "lambda"
    assert lambdas.start() == 1
    lambdas.publish()
    [payload] = invoked.payloads
    assert payload["parameters"]["payload"] == {"order": 7}
    assert payload["inputs"] == [] and payload["job"]["name"] == "receive"
    assert payload["bundle_url"] == payload["udf"]["bundle_url"]
    assert payload["udf"]["sha256"] == pushed["sha256"]
