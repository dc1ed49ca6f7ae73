"""Backfills over HTTPS and on the command line: preview, run, fail, resume, cancel, rewrite."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from typer.testing import CliRunner

from support.dispatcher import Secrets, live
from support.lifecycle import Attempt, Bench, bench, run_concurrently
from support.postgres import Templates, copied
from support.pressure import Graph, balance, graph
from support.users import new_org, new_user
from trace_etl.cli.main import app
from trace_etl.lite import connection
from trace_etl.lite.home import Home


@pytest.fixture(scope="module")
def stand(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A database of its own: the feeder looks at every backfill."""
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as made:
        yield made


@dataclass(frozen=True)
class Filling:
    """A graph `request → split → work → after`, and backfills of it."""

    g: Graph

    @property
    def bench(self) -> Bench:
        return self.g.bench

    def ask(self, job: str, start: int, end: int, **fields: Any) -> httpx.Response:
        body = {"dag": self.g.name, "job": job, "start": start, "end": end, **fields}
        return self.bench.user.post("/v1/backfills", json=body)

    def asked(self, job: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
        reply = self.ask(job, start, end, **fields)
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

    def state(self, made: dict[str, Any]) -> dict[str, Any]:
        return self.bench.user.get(f"/v1/backfills/{made['backfill_id']}").json()

    def post(self, made: dict[str, Any], verb: str) -> httpx.Response:
        return self.bench.user.post(f"/v1/backfills/{made['backfill_id']}/{verb}")

    def build(self, job: str, count: int = 1000, rows: int = 3) -> list[str]:
        """Run queued tasks of a job, publishing a partition each."""
        tasks = self.g.queued(job)[:count]
        for task_id in tasks:
            self.publish(self.bench.claimed(task_id), rows)
        self.bench.live.drain()
        return tasks

    def publish(self, attempt: Attempt, rows: int = 3) -> None:
        done = self.bench.complete(
            attempt,
            datasets_published=[self.bench.write_output(attempt, rows)],
            events=[attempt.event()],
        )
        assert done.status_code == 200, done.text

    def partitions(self, job: str) -> list[str]:
        query = """
            SELECT p.partition_key FROM partitions p JOIN dataset_versions v USING (dataset_version)
              JOIN datasets d ON d.dataset_uuid = v.dataset_uuid JOIN jobs j USING (job_id)
              JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = %s ORDER BY p.range_start
        """
        return [row["partition_key"] for row in self.bench.rows(query, self.g.name, job)]


@pytest.fixture
def filling(stand: Bench) -> Filling:
    stand.rows("UPDATE backfills SET state = 'canceled', ended_at = now() WHERE state = 'running'")
    return Filling(graph(stand, {"work": "split", "after": "work"}))


def test_a_range_is_built_in_chunks_as_bulk_work_and_so_is_what_follows(filling: Filling) -> None:
    made = filling.asked("work", 0, 29)
    assert made["new"]
    assert (made["state"], made["pending"], made["chunk"]) == ("running", 3, 10)
    tasks = filling.g.queued("work")
    rows = [filling.bench.row(task) for task in tasks]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", True),
        ("10-19", True),
        ("20-29", True),
    ]
    assert {m["task_id"] for m in filling.bench.messages("ecs_python")} >= set(tasks)
    filling.build("work", 2)
    filling.feed()
    seen = filling.state(made)
    assert (seen["completed"], seen["created"], seen["blocks_done"]) == (2, 1, 20)
    assert seen["blocks_left"] == 10
    assert seen["blocks_per_second"] > 0
    assert 0 < seen["seconds_left"] < 3600
    filling.build("work")
    filling.feed()
    seen = filling.state(made)
    assert (seen["state"], seen["completed"], seen["rows_done"]) == ("complete", 3, 9)
    assert seen["ended_at"]
    after = [filling.bench.row(task) for task in filling.g.queued("after")]
    assert [row["bulk"] for row in after] == [True] * 3


def test_the_preview_says_what_is_there_and_estimates_the_rest(filling: Filling) -> None:
    filling.asked("work", 10, 19)
    filling.build("work", rows=40)
    seen = filling.preview("work", 5, 34)
    assert [(c["start"], c["end"], c["action"], c["rows"]) for c in seen["chunks"]] == [
        (5, 9, "build", 20),
        (10, 19, "there", 40),
        (20, 29, "build", 40),
        (30, 34, "build", 20),
    ]
    assert (seen["build"], seen["there"], seen["blocks"], seen["rows"]) == (3, 1, 20, 80)
    assert seen["fed_by"] == f"{filling.g.name}.split.ranges"
    forced = filling.preview("work", 15, 15, force=True)
    assert [(c["start"], c["end"], c["action"]) for c in forced["chunks"]] == [(10, 19, "rebuild")]


def test_a_job_fed_by_partitions_builds_theirs_and_says_what_is_missing(filling: Filling) -> None:
    filling.asked("work", 0, 39)
    filling.build("work")
    filling.bench.rows(
        "DELETE FROM tasks WHERE task_id = ANY(%s::uuid[])", filling.g.queued("after")
    )
    seen = filling.preview("after", 15, 59)
    assert [(c["start"], c["end"], c["action"]) for c in seen["chunks"]] == [
        (10, 19, "build"),
        (20, 29, "build"),
        (30, 39, "build"),
        (40, 59, "no_input"),
    ]
    made = filling.asked("after", 15, 59)
    assert (made["pending"], made["skipped"]) == (3, 1)
    filling.build("after")
    filling.feed()
    assert filling.state(made)["state"] == "complete"
    assert filling.partitions("after") == ["10-19", "20-29", "30-39"]
    nothing = filling.ask("after", 100, 199)
    assert nothing.status_code == 409
    assert "has no data in blocks 100-199; backfill it first" in nothing.json()["detail"]


def test_the_same_request_is_the_same_backfill_and_asks_for_nothing_twice(
    filling: Filling,
) -> None:
    replies = run_concurrently([lambda: filling.ask("work", 0, 19) for _ in range(4)])
    assert {r.json()["backfill_id"] for r in replies} == {replies[0].json()["backfill_id"]}
    assert [r.json()["new"] for r in replies].count(True) == 1
    filling.feed()
    filling.build("work")
    filling.feed()
    again = filling.asked("work", 0, 19)
    assert (again["new"], again["state"]) == (False, "complete")
    assert filling.g.queued("work") == []
    other = filling.asked("work", 0, 19, chunk=5)
    assert (other["new"], other["state"], other["skipped"]) == (True, "complete", 2)


def test_tasks_that_events_made_are_waited_for_not_doubled(filling: Filling) -> None:
    filling.g.feed(2)
    before = filling.g.queued("work")
    made = filling.asked("work", 0, 29)
    assert filling.state(made)["created"] == 3
    assert set(before) < set(filling.g.queued("work"))
    assert len(filling.g.queued("work")) == 3
    filling.g.feed(3)  # and the other way round
    assert len(filling.g.queued("work")) == 3
    assert filling.post(made, "cancel").json()["canceled_tasks"] == 1
    assert filling.g.queued("work") == before


def test_failed_chunks_are_told_and_tried_again_on_resume(filling: Filling) -> None:
    made = filling.asked("work", 0, 29)
    bad, *_ = filling.g.queued("work")
    attempt = filling.bench.claimed(bad)
    filling.bench.complete(attempt, "Failed", error_message="no such block", retryable=False)
    filling.build("work")
    filling.feed()
    seen = filling.state(made)
    assert (seen["state"], seen["completed"], seen["failed"]) == ("failed", 2, 1)
    path = f"/v1/backfills/{made['backfill_id']}/chunks"
    (chunk,) = filling.bench.user.get(path, params={"state": "failed"}).json()["items"]
    assert (chunk["start"], chunk["end"], chunk["task_id"]) == (0, 9, bad)
    assert chunk["error_message"] == "no such block"
    assert filling.post(made, "resume").json()["chunks"] == 1
    filling.feed()
    filling.bench.start_retries()
    assert filling.g.queued("work") == [bad]
    assert filling.bench.row(bad)["attempt"] == 2
    filling.build("work")
    filling.feed()
    assert filling.state(made)["state"] == "complete"
    assert filling.post(made, "resume").status_code == 409


def test_canceling_ends_what_waits_asks_what_runs_to_stop_and_can_be_resumed(
    filling: Filling,
) -> None:
    made = filling.asked("work", 0, 39)
    filling.build("work", 1)
    running = filling.bench.claimed(filling.g.queued("work")[0])
    answer = filling.post(made, "cancel").json()
    assert (answer["state"], answer["canceled_tasks"], answer["asked_to_stop"]) == (
        "canceled",
        3,
        1,
    )
    assert filling.bench.heartbeat(running).json()["cancel_requested"]
    assert filling.g.queued("work") == []
    seen = filling.state(made)
    assert (seen["state"], seen["completed"], seen["canceled"]) == ("canceled", 1, 3)
    assert seen["why"] == "the backfill was canceled by local"
    assert filling.post(made, "cancel").status_code == 200  # once more changes nothing
    filling.g.feed(4)  # what was canceled may be asked for by others
    assert len(filling.g.queued("work")) == 3
    filling.post(made, "resume")
    filling.feed()
    assert len(filling.g.queued("work")) == 3
    filling.build("work")
    filling.feed()
    assert filling.state(made)["state"] == "complete"
    assert filling.post(made, "cancel").status_code == 409


def test_by_force_what_is_there_is_rewritten_and_whoever_read_it_is_told(filling: Filling) -> None:
    filling.asked("work", 0, 19)
    filling.build("work")
    filling.build("after")
    assert filling.partitions("after") == ["0-9", "10-19"]
    made = filling.asked("work", 5, 9, force=True)
    assert (made["new"], made["pending"]) == (True, 1)
    (task,) = filling.g.queued("work")
    assert filling.bench.row(task)["partition_key"] == "0-9"
    filling.build("work", rows=8)
    filling.feed()
    seen = filling.state(made)
    assert (seen["state"], seen["rows_done"]) == ("complete", 8)
    again = filling.g.queued("after")
    assert [filling.bench.row(one)["partition_key"] for one in again] == ["0-9"]
    second = filling.asked("work", 5, 9, force=True)
    assert second["new"]  # a rewrite that is complete can be asked for again


def test_few_tasks_wait_at_once_and_fewer_than_would_make_the_job_push_back(
    stand: Bench, filling: Filling
) -> None:
    made = filling.ask("work", 0, 999).json()
    filling.feed(window=7)
    assert len(filling.g.queued("work")) == 7
    filling.build("work", 3)
    filling.feed(window=7)
    assert len(filling.g.queued("work")) == 7
    assert filling.state(made)["pending"] == 90
    filling.post(made, "cancel")
    limited = Filling(graph(stand, {"work": "split; max_queue_depth: 10"}))
    limited.asked("work", 0, 999)
    assert len(limited.g.queued("work")) == 5
    balance(stand)
    assert limited.g.paused() == {}


def test_a_paused_job_gets_no_chunks_and_the_backfill_says_why(filling: Filling) -> None:
    filling.bench.user.post(
        "/v1/pauses", json={"dag": filling.g.name, "job": "work", "tier": "bulk", "reason": "busy"}
    )
    made = filling.asked("work", 0, 19)
    assert filling.g.queued("work") == []
    assert filling.state(made)["paused_by"] == "local (busy)"
    filling.bench.user.post("/v1/pauses/resume", json={"dag": filling.g.name})
    filling.feed()
    assert len(filling.g.queued("work")) == 2


def test_a_splitter_passes_a_range_on_once(filling: Filling) -> None:
    made = filling.asked("split", 0, 29)
    filling.feed()
    assert filling.state(made)["state"] == "complete"
    rows = [filling.bench.row(task) for task in filling.g.queued("work")]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", True),
        ("10-19", True),
        ("20-29", True),
    ]
    assert filling.preview("split", 0, 29)["there"] == 1
    assert filling.asked("split", 0, 29)["new"] is False
    forced = filling.ask("split", 0, 29, force=True)
    assert forced.status_code == 409
    assert "keeps no partitions" in forced.json()["detail"]


def test_a_redeploy_that_changes_the_job_ends_its_backfill(stand: Bench, filling: Filling) -> None:
    made = filling.asked("work", 0, 19)
    text = stand.rows(
        "SELECT v.text FROM dags g JOIN dag_versions v USING (dag_version) WHERE g.name = %s",
        filling.g.name,
    )[0]["text"]
    changed = text.replace('sql: "SELECT 1"', 'sql: "SELECT 2"')
    assert stand.user.post("/v1/dags", json={"text": changed}).status_code == 200
    filling.feed()
    seen = filling.state(made)
    assert (seen["state"], seen["why"]) == ("canceled", "the job was redeployed")


def test_what_ended_long_ago_is_forgotten(stand: Bench, filling: Filling) -> None:
    old, young = filling.asked("work", 0, 9), filling.asked("work", 10, 19)
    filling.post(old, "cancel")
    filling.post(young, "cancel")
    stand.rows(
        "UPDATE backfills SET ended_at = now() - interval '31 days' WHERE backfill_id = %s",
        old["backfill_id"],
    )
    while stand.live.run(stand.live.service.retention.delete_once):
        pass
    assert filling.bench.user.get(f"/v1/backfills/{old['backfill_id']}").status_code == 404
    assert filling.state(young)["state"] == "canceled"
    chunks = "SELECT 1 FROM backfill_chunks WHERE backfill_id = %s"
    assert stand.rows(chunks, old["backfill_id"]) == []


def test_what_cannot_be_filled_is_refused_with_the_reason(filling: Filling) -> None:
    forced = filling.ask("request", 0, 9, force=True)
    assert forced.status_code == 409
    assert "keeps no partitions" in forced.json()["detail"]
    assert filling.ask("nobody", 0, 9).status_code == 404
    assert filling.ask("work", 9, 0).status_code == 422
    many = filling.ask("work", 0, 10**9, chunk=1)
    assert many.status_code == 422
    assert "chunks exceed the limit" in many.json()["errors"][0]["message"]


def test_a_manual_source_is_filled_by_its_events_as_bulk_work(filling: Filling) -> None:
    filling.g.feed(1)
    seen = filling.preview("request", 0, 39, chunk=10)
    assert [(c["start"], c["action"]) for c in seen["chunks"]] == [
        (0, "there"),
        (10, "build"),
        (20, "build"),
        (30, "build"),
    ]
    made = filling.asked("request", 0, 39, chunk=10)
    filling.feed()
    done = filling.state(made)
    assert (done["state"], done["completed"], done["skipped"]) == ("complete", 3, 1)
    rows = [filling.bench.row(task) for task in filling.g.queued("work")]
    assert [(row["partition_key"], row["bulk"]) for row in rows] == [
        ("0-9", False),
        ("10-19", True),
        ("20-29", True),
        ("30-39", True),
    ]
    triggers = filling.bench.user.get("/v1/triggers", params={"dag": filling.g.name}).json()
    assert len(triggers["items"]) == 4
    again = filling.ask("request", 0, 39, chunk=10).json()
    assert (again["backfill_id"], again["new"]) == (made["backfill_id"], False)


def test_a_source_is_filled_a_few_events_at_a_time_and_none_while_it_is_paused(
    filling: Filling,
) -> None:
    place = {"dag": filling.g.name, "job": "request"}
    assert filling.bench.user.post("/v1/pauses", json=place).status_code == 200
    made = filling.ask("request", 0, 49, chunk=10).json()
    filling.feed(window=2)
    assert filling.state(made)["pending"] == 5
    assert filling.bench.user.post("/v1/pauses/resume", json=place).status_code == 200
    filling.feed(window=2)
    assert (filling.state(made)["pending"], len(filling.g.queued("work"))) == (3, 2)
    assert filling.post(made, "cancel").status_code == 200
    filling.feed()
    assert len(filling.g.queued("work")) == 2
    assert filling.post(made, "resume").status_code == 200
    filling.feed()
    assert len(filling.g.queued("work")) == 5


def test_a_source_whose_readers_take_each_event_whole_is_cut_as_elsewhere(stand: Bench) -> None:
    split = Filling(graph(stand, {"work": "split"}))
    direct = Filling(graph(stand, {"work": "request"}))
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
def test_other_sources_say_what_to_fill_instead(stand: Bench, source: str, why: str) -> None:
    name = f"s_{uuid4().hex[:12]}"
    text = f"""
name: {name}
jobs:
  - {{name: tell, source: {source}, outputs: [ranges]}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: tell}}}}]
    outputs: [out]
    config: {{sql: "SELECT 1"}}
"""
    assert stand.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": name, "job": "tell", "start": 0, "end": 9}
    reply = stand.user.post("/v1/backfills", json=body)
    assert reply.status_code == 409
    assert f"{why}; backfill its consumers: {name}.work" in reply.json()["detail"]


def test_backfills_are_paged_filtered_and_only_of_ones_own_org(filling: Filling) -> None:
    ids = [filling.asked("work", n * 10, n * 10 + 9)["backfill_id"] for n in range(3)]
    query: dict[str, Any] = {"dag": filling.g.name, "limit": 2}
    user = filling.bench.user
    first = user.get("/v1/backfills", params=query).json()
    rest = user.get("/v1/backfills", params={**query, "after": first["next"]}).json()
    assert [b["backfill_id"] for b in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next"] is None
    done = user.get("/v1/backfills", params={**query, "state": "complete"}).json()
    assert done["items"] == []
    with new_user(filling.bench, "writer", org_id=new_org(filling.bench)) as stranger:
        assert stranger.get("/v1/backfills").json()["items"] == []
        for path in ("", "/chunks"):
            assert stranger.get(f"/v1/backfills/{ids[0]}{path}").status_code == 404
        for verb in ("cancel", "resume"):
            assert stranger.post(f"/v1/backfills/{ids[0]}/{verb}").status_code == 404


def test_the_command_line_previews_runs_shows_cancels_and_resumes(
    filling: Filling, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    cfg, secrets = filling.bench.live.cfg, filling.bench.live.secrets
    described = connection.describe(
        home, api=cfg.api_port, internal=cfg.internal_port, query=1, pid=1
    )
    own = replace(described, ca=str(secrets.ca), user_token=str(secrets.directory / "user.jwt"))
    connection.write(home.connection, own)

    def trace(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words], env={"TRACE_HOME": str(tmp_path)})
        assert done.exit_code == code, done.output
        return done.output

    ask = ["backfill", filling.g.name, "work", "--range", "0-29"]
    shown = trace(*ask, "--dry-run")
    assert "3 to build. 30 blocks, unknown number of rows" in shown
    assert filling.g.queued("work") == []
    shown = trace(*ask)
    assert "3 chunks to build" in shown
    assert "This backfill exists already" in trace(*ask)
    made = filling.bench.user.get("/v1/backfills", params={"dag": filling.g.name}).json()["items"][
        0
    ]
    filling.feed()
    assert f"{filling.g.name}.work" in trace("backfills", "--state", "running")
    assert "3 created" in trace("backfills", "show", made["backfill_id"])
    assert "3 queued tasks ended" in trace("backfills", "cancel", made["backfill_id"])
    assert "the backfill is canceled" in trace(
        "backfills", "show", made["backfill_id"], "--wait", code=1
    )
    assert "Retrying 3 chunks" in trace("backfills", "resume", made["backfill_id"])
    filling.feed()
    filling.build("work")
    filling.feed()
    assert "3/3 chunks: complete, 9 rows" in trace(
        "backfills", "show", made["backfill_id"], "--wait"
    )
    assert "is built already" not in trace(*ask, "--wait")
    assert "already built" in trace(*ask, "--dry-run")
