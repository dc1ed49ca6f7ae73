"""Backfills over HTTPS and on the command line: preview, run, fail, resume, cancel, rewrite."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from support.dags.pressure import Graph, balance, graph
from support.lifecycle.lifecycle import Attempt, Bench, run_concurrently
from support.users import new_org, new_user
from trace_etl.cli.main import app
from trace_etl.lite import connection
from trace_etl.lite.home import Home


@dataclass(frozen=True)
class BackfillRun:
    """A DAG `request → split → work → after`, and backfills of its jobs."""

    g: Graph

    @property
    def bench(self) -> Bench:
        return self.g.bench

    def request(self, job: str, start: int, end: int, **fields: Any) -> httpx.Response:
        body = {"dag": self.g.name, "job": job, "start": start, "end": end, **fields}
        return self.bench.user.post("/v1/backfills", json=body)

    def start(self, job: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
        reply = self.request(job, start, end, **fields)
        assert reply.status_code == 200, reply.text
        self.feed()
        return reply.json()

    def preview(self, job: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
        body = {"dag": self.g.name, "job": job, "start": start, "end": end, **fields}
        reply = self.bench.user.post("/v1/backfills/preview", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def feed(self, window: int = 200) -> None:
        feeder = replace(self.bench.live.service.feeder, window=window)
        self.bench.live.run(feeder.feed_once)
        self.bench.live.drain()

    def state(self, backfill: dict[str, Any]) -> dict[str, Any]:
        return self.bench.user.get(f"/v1/backfills/{backfill['backfill_id']}").json()

    def post(self, backfill: dict[str, Any], verb: str) -> httpx.Response:
        return self.bench.user.post(f"/v1/backfills/{backfill['backfill_id']}/{verb}")

    def build(self, job: str, count: int = 1000, rows: int = 3) -> list[str]:
        """Run queued tasks of a job; each publishes a partition."""
        tasks = self.g.queued(job)[:count]
        for task_id in tasks:
            self.publish(self.bench.claimed(task_id), rows)
        self.bench.live.drain()
        return tasks

    def publish(self, attempt: Attempt, rows: int = 3) -> None:
        reply = self.bench.complete(
            attempt,
            datasets_published=[self.bench.write_output(attempt, rows)],
            events=[attempt.event()],
        )
        assert reply.status_code == 200, reply.text

    def fail(self, *task_ids: str) -> None:
        """Fail tasks permanently, and let the feeder record it."""
        self.bench.start_retries()
        for task_id in task_ids:
            reply = self.bench.complete(self.bench.claimed(task_id), "Failed", retryable=False)
            assert reply.status_code == 200, reply.text
        self.feed()

    def retry(self, *task_ids: str) -> None:
        reply = self.bench.user.post("/v1/tasks/retry", json={"task_ids": task_ids})
        assert reply.json()["retried"] == len(task_ids), reply.text

    def partitions(self, job: str) -> list[str]:
        query = """
            SELECT p.partition_key FROM partitions p JOIN dataset_versions v USING (dataset_version)
              JOIN datasets d ON d.dataset_uuid = v.dataset_uuid JOIN jobs j USING (job_id)
              JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = %s ORDER BY p.range_start
        """
        return [row["partition_key"] for row in self.bench.rows(query, self.g.name, job)]


@pytest.fixture
def backfills(own_bench: Bench) -> BackfillRun:
    own_bench.rows(
        "UPDATE backfills SET state = 'canceled', ended_at = now() WHERE state = 'running'"
    )
    return BackfillRun(graph(own_bench, {"work": "split", "after": "work"}))


def test_a_backfill_creates_bulk_tasks_per_chunk_and_downstream_tasks_are_bulk_too(
    backfills: BackfillRun,
) -> None:
    backfill = backfills.start("work", 0, 29)
    assert backfill["new"]
    assert (backfill["state"], backfill["pending"], backfill["chunk"]) == ("running", 3, 10)
    tasks = backfills.g.queued("work")
    rows = [backfills.bench.row(task) for task in tasks]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", True),
        ("10-19", True),
        ("20-29", True),
    ]
    assert {m["task_id"] for m in backfills.bench.messages("ecs_python")} >= set(tasks)
    backfills.build("work", 2)
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["completed"], state["created"], state["blocks_done"]) == (2, 1, 20)
    assert state["blocks_left"] == 10
    assert state["blocks_per_second"] > 0
    assert 0 < state["seconds_left"] < 3600
    backfills.build("work")
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["rows_done"]) == ("complete", 3, 9)
    assert state["ended_at"]
    after = [backfills.bench.row(task) for task in backfills.g.queued("after")]
    assert [row["bulk"] for row in after] == [True] * 3


def test_the_preview_lists_existing_chunks_and_estimates_the_missing_ones(
    backfills: BackfillRun,
) -> None:
    backfills.start("work", 10, 19)
    backfills.build("work", rows=40)
    preview = backfills.preview("work", 5, 34)
    assert [(c["start"], c["end"], c["action"], c["rows"]) for c in preview["chunks"]] == [
        (5, 9, "build", 20),
        (10, 19, "there", 40),
        (20, 29, "build", 40),
        (30, 34, "build", 20),
    ]
    assert (preview["build"], preview["there"], preview["blocks"], preview["rows"]) == (
        3,
        1,
        20,
        80,
    )
    assert preview["fed_by"] == f"{backfills.g.name}.split.ranges"
    forced = backfills.preview("work", 15, 15, force=True)
    assert [(c["start"], c["end"], c["action"]) for c in forced["chunks"]] == [(10, 19, "rebuild")]


def test_a_backfill_follows_the_input_partitions_and_reports_missing_input(
    backfills: BackfillRun,
) -> None:
    backfills.start("work", 0, 39)
    backfills.build("work")
    backfills.bench.rows(
        "DELETE FROM tasks WHERE task_id = ANY(%s::uuid[])", backfills.g.queued("after")
    )
    preview = backfills.preview("after", 15, 59)
    assert [(c["start"], c["end"], c["action"]) for c in preview["chunks"]] == [
        (10, 19, "build"),
        (20, 29, "build"),
        (30, 39, "build"),
        (40, 59, "no_input"),
    ]
    backfill = backfills.start("after", 15, 59)
    assert (backfill["pending"], backfill["skipped"]) == (3, 1)
    backfills.build("after")
    backfills.feed()
    assert backfills.state(backfill)["state"] == "complete"
    assert backfills.partitions("after") == ["10-19", "20-29", "30-39"]
    nothing = backfills.request("after", 100, 199)
    assert nothing.status_code == 409
    assert "has no data in blocks 100-199; backfill it first" in nothing.json()["detail"]


def test_a_repeated_request_returns_the_same_backfill_and_creates_no_new_tasks(
    backfills: BackfillRun,
) -> None:
    replies = run_concurrently([lambda: backfills.request("work", 0, 19) for _ in range(4)])
    assert {r.json()["backfill_id"] for r in replies} == {replies[0].json()["backfill_id"]}
    assert [r.json()["new"] for r in replies].count(True) == 1
    backfills.feed()
    backfills.build("work")
    backfills.feed()
    again = backfills.start("work", 0, 19)
    assert (again["new"], again["state"]) == (False, "complete")
    assert backfills.g.queued("work") == []
    other = backfills.start("work", 0, 19, chunk=5)
    assert (other["new"], other["state"], other["skipped"]) == (True, "complete", 2)


def test_a_backfill_adopts_tasks_that_events_created(backfills: BackfillRun) -> None:
    backfills.g.feed(2)
    before = backfills.g.queued("work")
    backfill = backfills.start("work", 0, 29)
    assert backfills.state(backfill)["created"] == 3
    assert set(before) < set(backfills.g.queued("work"))
    assert len(backfills.g.queued("work")) == 3
    backfills.g.feed(3)  # events adopt tasks of the backfill, too
    assert len(backfills.g.queued("work")) == 3
    assert backfills.post(backfill, "cancel").json()["canceled_tasks"] == 1
    assert backfills.g.queued("work") == before


def test_failed_chunks_are_listed_and_retried_on_resume(backfills: BackfillRun) -> None:
    backfill = backfills.start("work", 0, 29)
    bad, *_ = backfills.g.queued("work")
    attempt = backfills.bench.claimed(bad)
    backfills.bench.complete(attempt, "Failed", error_message="no such block", retryable=False)
    backfills.build("work")
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["failed"]) == ("failed", 2, 1)
    path = f"/v1/backfills/{backfill['backfill_id']}/chunks"
    (chunk,) = backfills.bench.user.get(path, params={"state": "failed"}).json()["items"]
    assert (chunk["start"], chunk["end"], chunk["task_id"]) == (0, 9, bad)
    assert chunk["error_message"] == "no such block"
    assert backfills.post(backfill, "resume").json()["chunks"] == 1
    backfills.feed()
    backfills.bench.start_retries()
    assert backfills.g.queued("work") == [bad]
    assert backfills.bench.row(bad)["attempt"] == 2
    backfills.build("work")
    backfills.feed()
    assert backfills.state(backfill)["state"] == "complete"
    assert backfills.post(backfill, "resume").status_code == 409


def test_a_backfill_waits_again_for_failed_tasks_that_are_retried(backfills: BackfillRun) -> None:
    backfill = backfills.start("work", 0, 29)
    early, late, _ = backfills.g.queued("work")
    backfills.fail(early)
    assert backfills.state(backfill)["failed"] == 1
    backfills.retry(early)  # while the backfill runs
    assert (backfills.state(backfill)["failed"], backfills.state(backfill)["created"]) == (0, 3)
    backfills.bench.start_retries()
    backfills.fail(late)
    backfills.build("work")
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["failed"]) == ("failed", 2, 1)
    backfills.retry(late)  # after its end
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["failed"], state["ended_at"]) == ("running", 0, None)
    backfills.bench.start_retries()
    assert backfills.build("work") == [late]
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"]) == ("complete", 3)


def test_of_two_failed_backfills_of_a_range_a_retry_runs_the_newest_again(
    backfills: BackfillRun,
) -> None:
    first = backfills.start("work", 0, 19)
    tasks = backfills.g.queued("work")
    backfills.fail(*tasks)
    second = backfills.start("work", 0, 19)
    assert second["new"]
    backfills.fail(tasks[0])
    backfills.retry(tasks[0])  # the second one runs, so the first one stays as it is
    assert backfills.state(second)["created"] == 2
    backfills.fail(*tasks)
    states = [backfills.state(b)["state"] for b in (first, second)]
    assert states == ["failed", "failed"]
    backfills.retry(*tasks)
    states = [backfills.state(b)["state"] for b in (first, second)]
    assert states == ["failed", "running"]
    assert backfills.state(first)["failed"] == 2
    assert backfills.post(second, "cancel").status_code == 200
    canceled = backfills.start("work", 20, 29)
    (task,) = backfills.g.queued("work")
    backfills.bench.complete(backfills.bench.claimed(task), "Failed", retryable=False)
    backfills.post(canceled, "cancel")
    backfills.retry(task)
    assert backfills.state(canceled)["state"] == "canceled"


def test_a_task_that_publishes_nothing_leaves_its_chunk_failed_until_its_blocks_are_published(
    backfills: BackfillRun,
) -> None:
    backfills.g.feed(2)
    hole, _ = backfills.g.queued("work")
    assert backfills.bench.complete(backfills.bench.claimed(hole)).status_code == 200
    backfills.build("work")
    assert backfills.partitions("work") == ["10-19"]
    backfill = backfills.start("work", 0, 19, force=True)
    assert (backfill["new"], backfill["pending"]) == (True, 2)
    again = [t for t in backfills.g.queued("work") if backfills.bench.row(t)["range_start"] == 0]
    assert len(again) == 1 and again != [hole]
    backfills.bench.complete(backfills.bench.claimed(again[0]))  # nothing again
    backfills.build("work")
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["failed"]) == ("failed", 1, 1)
    path = f"/v1/backfills/{backfill['backfill_id']}/chunks"
    (chunk,) = backfills.bench.user.get(path, params={"state": "failed"}).json()["items"]
    assert (chunk["start"], chunk["task_status"]) == (0, "Completed")
    assert "completed without publishing its outputs" in chunk["error_message"]
    assert backfills.post(backfill, "resume").json()["chunks"] == 1
    backfills.feed()
    backfills.build("work")
    backfills.feed()
    assert backfills.state(backfill)["state"] == "complete"
    assert backfills.partitions("work") == ["0-9", "10-19"]


def test_cancel_ends_queued_tasks_requests_running_ones_to_stop_and_resume_works(
    backfills: BackfillRun,
) -> None:
    backfill = backfills.start("work", 0, 39)
    backfills.build("work", 1)
    running = backfills.bench.claimed(backfills.g.queued("work")[0])
    answer = backfills.post(backfill, "cancel").json()
    assert (answer["state"], answer["canceled_tasks"], answer["asked_to_stop"]) == (
        "canceled",
        3,
        1,
    )
    assert backfills.bench.heartbeat(running).json()["cancel_requested"]
    assert backfills.g.queued("work") == []
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["canceled"]) == ("canceled", 1, 3)
    assert state["why"] == "the backfill was canceled by local"
    assert (
        backfills.post(backfill, "cancel").status_code == 200
    )  # a repeated cancel changes nothing
    backfills.g.feed(4)  # events may start canceled tasks again
    assert len(backfills.g.queued("work")) == 3
    backfills.post(backfill, "resume")
    backfills.feed()
    assert len(backfills.g.queued("work")) == 3
    backfills.build("work")
    backfills.feed()
    assert backfills.state(backfill)["state"] == "complete"
    assert backfills.post(backfill, "cancel").status_code == 409


def test_a_forced_backfill_rewrites_partitions_and_rebuilds_their_consumers(
    backfills: BackfillRun,
) -> None:
    backfills.start("work", 0, 19)
    backfills.build("work")
    backfills.build("after")
    assert backfills.partitions("after") == ["0-9", "10-19"]
    backfill = backfills.start("work", 5, 9, force=True)
    assert (backfill["new"], backfill["pending"]) == (True, 1)
    (task,) = backfills.g.queued("work")
    assert backfills.bench.row(task)["partition_key"] == "0-9"
    backfills.build("work", rows=8)
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["rows_done"]) == ("complete", 8)
    again = backfills.g.queued("after")
    assert [backfills.bench.row(task_id)["partition_key"] for task_id in again] == ["0-9"]
    second = backfills.start("work", 5, 9, force=True)
    assert second["new"]  # a completed rewrite can be requested again


def test_a_backfill_keeps_the_queue_below_its_window_and_the_backpressure_limit(
    own_bench: Bench, backfills: BackfillRun
) -> None:
    backfill = backfills.request("work", 0, 999).json()
    backfills.feed(window=7)
    assert len(backfills.g.queued("work")) == 7
    backfills.build("work", 3)
    backfills.feed(window=7)
    assert len(backfills.g.queued("work")) == 7
    assert backfills.state(backfill)["pending"] == 90
    backfills.post(backfill, "cancel")
    limited = BackfillRun(graph(own_bench, {"work": "split; max_queue_depth: 10"}))
    limited.start("work", 0, 999)
    assert len(limited.g.queued("work")) == 5
    balance(own_bench)
    assert limited.g.paused() == {}


def test_a_paused_job_gets_no_chunks_and_the_backfill_reports_the_pause(
    backfills: BackfillRun,
) -> None:
    backfills.bench.user.post(
        "/v1/pauses",
        json={"dag": backfills.g.name, "job": "work", "tier": "bulk", "reason": "busy"},
    )
    backfill = backfills.start("work", 0, 19)
    assert backfills.g.queued("work") == []
    assert backfills.state(backfill)["paused_by"] == "local (busy)"
    backfills.bench.user.post("/v1/pauses/resume", json={"dag": backfills.g.name})
    backfills.feed()
    assert len(backfills.g.queued("work")) == 2


def test_a_splitter_forwards_a_range_once(backfills: BackfillRun) -> None:
    backfill = backfills.start("split", 0, 29)
    backfills.feed()
    assert backfills.state(backfill)["state"] == "complete"
    rows = [backfills.bench.row(task) for task in backfills.g.queued("work")]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", True),
        ("10-19", True),
        ("20-29", True),
    ]
    assert backfills.preview("split", 0, 29)["there"] == 1
    assert backfills.start("split", 0, 29)["new"] is False
    forced = backfills.request("split", 0, 29, force=True)
    assert forced.status_code == 409
    assert "keeps no partitions" in forced.json()["detail"]


def test_a_redeploy_that_changes_the_job_ends_its_backfill(
    own_bench: Bench, backfills: BackfillRun
) -> None:
    backfill = backfills.start("work", 0, 19)
    text = own_bench.rows(
        "SELECT v.text FROM dags g JOIN dag_versions v USING (dag_version) WHERE g.name = %s",
        backfills.g.name,
    )[0]["text"]
    changed = text.replace('sql: "SELECT 1"', 'sql: "SELECT 2"')
    assert own_bench.user.post("/v1/dags", json={"text": changed}).status_code == 200
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["why"]) == ("canceled", "the job was redeployed")


def test_retention_deletes_backfills_that_ended_long_ago(
    own_bench: Bench, backfills: BackfillRun
) -> None:
    old, recent = backfills.start("work", 0, 9), backfills.start("work", 10, 19)
    backfills.post(old, "cancel")
    backfills.post(recent, "cancel")
    own_bench.rows(
        "UPDATE backfills SET ended_at = now() - interval '31 days' WHERE backfill_id = %s",
        old["backfill_id"],
    )
    while own_bench.live.run(own_bench.live.service.retention.delete_once):
        pass
    assert backfills.bench.user.get(f"/v1/backfills/{old['backfill_id']}").status_code == 404
    assert backfills.state(recent)["state"] == "canceled"
    chunks = "SELECT 1 FROM backfill_chunks WHERE backfill_id = %s"
    assert own_bench.rows(chunks, old["backfill_id"]) == []


def test_an_impossible_backfill_is_refused_with_the_reason(backfills: BackfillRun) -> None:
    forced = backfills.request("request", 0, 9, force=True)
    assert forced.status_code == 409
    assert "keeps no partitions" in forced.json()["detail"]
    assert backfills.request("unknown_job", 0, 9).status_code == 404
    assert backfills.request("work", 9, 0).status_code == 422
    many = backfills.request("work", 0, 10**9, chunk=1)
    assert many.status_code == 422
    assert "chunks exceed the limit" in many.json()["errors"][0]["message"]


def test_a_backfill_of_a_manual_source_emits_bulk_events(backfills: BackfillRun) -> None:
    backfills.g.feed(1)
    preview = backfills.preview("request", 0, 39, chunk=10)
    assert [(c["start"], c["action"]) for c in preview["chunks"]] == [
        (0, "there"),
        (10, "build"),
        (20, "build"),
        (30, "build"),
    ]
    backfill = backfills.start("request", 0, 39, chunk=10)
    backfills.feed()
    state = backfills.state(backfill)
    assert (state["state"], state["completed"], state["skipped"]) == ("complete", 3, 1)
    rows = [backfills.bench.row(task) for task in backfills.g.queued("work")]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", False),
        ("10-19", True),
        ("20-29", True),
        ("30-39", True),
    ]
    triggers = backfills.bench.user.get("/v1/triggers", params={"dag": backfills.g.name}).json()
    assert len(triggers["items"]) == 4
    again = backfills.request("request", 0, 39, chunk=10).json()
    assert (again["backfill_id"], again["new"]) == (backfill["backfill_id"], False)


def test_a_source_backfill_emits_few_events_per_pass_and_none_while_paused(
    backfills: BackfillRun,
) -> None:
    place = {"dag": backfills.g.name, "job": "request"}
    assert backfills.bench.user.post("/v1/pauses", json=place).status_code == 200
    backfill = backfills.request("request", 0, 49, chunk=10).json()
    backfills.feed(window=2)
    assert backfills.state(backfill)["pending"] == 5
    assert backfills.bench.user.post("/v1/pauses/resume", json=place).status_code == 200
    backfills.feed(window=2)
    assert (backfills.state(backfill)["pending"], len(backfills.g.queued("work"))) == (3, 2)
    assert backfills.post(backfill, "cancel").status_code == 200
    backfills.feed()
    assert len(backfills.g.queued("work")) == 2
    assert backfills.post(backfill, "resume").status_code == 200
    backfills.feed()
    assert len(backfills.g.queued("work")) == 5


def test_a_source_without_a_splitter_downstream_uses_the_default_chunk_size(
    own_bench: Bench,
) -> None:
    split = BackfillRun(graph(own_bench, {"work": "split"}))
    direct = BackfillRun(graph(own_bench, {"work": "request"}))
    assert split.preview("request", 0, 4999)["chunk"] == 5000
    assert direct.preview("request", 0, 4999)["chunk"] == 1000


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('{kind: cron, schedule: "0 0 * * *"}', "runs on a schedule"),
        ("{kind: webhook, secret: hook}", "forwards deliveries"),
    ],
    ids=["cron", "webhook"],
)
def test_a_cron_or_webhook_source_names_the_job_to_backfill_instead(
    own_bench: Bench, source: str, why: str
) -> None:
    name = f"s_{uuid4().hex[:12]}"
    text = f"""
name: {name}
jobs:
  - {{name: source, source: {source}, outputs: [ranges]}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: source}}}}]
    outputs: [out]
    config: {{sql: "SELECT 1"}}
"""
    assert own_bench.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": name, "job": "source", "start": 0, "end": 9}
    reply = own_bench.user.post("/v1/backfills", json=body)
    assert reply.status_code == 409
    assert f"{why}; backfill its consumers: {name}.work" in reply.json()["detail"]


def test_backfills_are_paged_filtered_and_limited_to_the_callers_org(
    backfills: BackfillRun,
) -> None:
    ids = [backfills.start("work", n * 10, n * 10 + 9)["backfill_id"] for n in range(3)]
    query: dict[str, Any] = {"dag": backfills.g.name, "limit": 2}
    user = backfills.bench.user
    first = user.get("/v1/backfills", params=query).json()
    rest = user.get("/v1/backfills", params={**query, "after": first["next"]}).json()
    assert [b["backfill_id"] for b in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next"] is None
    completed = user.get("/v1/backfills", params={**query, "state": "complete"}).json()
    assert completed["items"] == []
    with new_user(backfills.bench, "writer", org_id=new_org(backfills.bench)) as stranger:
        assert stranger.get("/v1/backfills").json()["items"] == []
        for path in ("", "/chunks"):
            assert stranger.get(f"/v1/backfills/{ids[0]}{path}").status_code == 404
        for verb in ("cancel", "resume"):
            assert stranger.post(f"/v1/backfills/{ids[0]}/{verb}").status_code == 404


def test_the_cli_previews_runs_shows_cancels_and_resumes_backfills(
    backfills: BackfillRun, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    cfg, secrets = backfills.bench.live.cfg, backfills.bench.live.secrets
    described = connection.describe(
        home, api=cfg.api_port, internal=cfg.internal_port, query=1, pid=1
    )
    own = replace(described, ca=str(secrets.ca), user_token=str(secrets.directory / "user.jwt"))
    connection.write(home.connection, own)

    def trace(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*arguments], env={"TRACE_HOME": str(tmp_path)})
        assert result.exit_code == code, result.output
        return result.output

    command = ["backfill", backfills.g.name, "work", "--range", "0-29"]
    output = trace(*command, "--dry-run")
    assert "3 to build. 30 blocks, unknown number of rows" in output
    assert backfills.g.queued("work") == []
    output = trace(*command)
    assert "3 chunks to build" in output
    assert "This backfill exists already" in trace(*command)
    backfill = backfills.bench.user.get("/v1/backfills", params={"dag": backfills.g.name}).json()[
        "items"
    ][0]
    backfills.feed()
    assert f"{backfills.g.name}.work" in trace("backfills", "--state", "running")
    assert "3 created" in trace("backfills", "show", backfill["backfill_id"])
    assert "3 queued tasks ended" in trace("backfills", "cancel", backfill["backfill_id"])
    assert "the backfill is canceled" in trace(
        "backfills", "show", backfill["backfill_id"], "--wait", code=1
    )
    assert "Retrying 3 chunks" in trace("backfills", "resume", backfill["backfill_id"])
    backfills.feed()
    backfills.build("work")
    backfills.feed()
    assert "3/3 chunks: complete, 9 rows" in trace(
        "backfills", "show", backfill["backfill_id"], "--wait"
    )
    assert "is built already" not in trace(*command, "--wait")
    assert "already built" in trace(*command, "--dry-run")
