"""`always_on` sources: one task each, whatever happens to it, until nobody wants it."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from support.lifecycle import Attempt, Bench, at_once
from support.pressure import balance

DAG = """
name: {name}
jobs:
  - name: follow
    source: {{kind: always_on}}
    operator: block_follower
    outputs: [hot_blocks]
    config: {config}
    heartbeat_timeout: {heartbeat}
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
{more}
"""


@dataclass
class Source:
    """A DAG with one always_on source, and what becomes of it."""

    one: Bench
    name: str

    def deploy(self, config: str = "{}", heartbeat: str = "120", more: str = "") -> None:
        text = DAG.format(name=self.name, config=config, heartbeat=heartbeat, more=more)
        reply = self.one.user.post("/v1/dags", json={"text": text})
        assert reply.status_code == 200, reply.text

    def remove(self) -> None:
        job = "{name: request, source: {kind: manual}, outputs: [x]}"
        text = f"name: {self.name}\njobs:\n  - {job}"
        reply = self.one.user.post("/v1/dags", json={"text": text})
        assert reply.status_code == 200, reply.text

    def look(self) -> list[dict[str, Any]]:
        """Let the monitor look once; the source's tasks, oldest first."""
        self.one.live.run(self.one.live.service.sources.supervise_once)
        return self.tasks()

    def tasks(self) -> list[dict[str, Any]]:
        return self.one.rows(
            "SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)"
            " WHERE g.name = %s AND j.name = 'follow' ORDER BY t.created_at",
            self.name,
        )

    def running(self) -> Attempt:
        (task,) = [t for t in self.look() if t["status"] == "Queued"]
        return self.one.claimed(str(task["task_id"]))

    def forget_the_past(self) -> None:
        """As if the attempts that ended had ended long ago."""
        self.one.rows(
            "UPDATE task_attempts SET ended_at = now() - interval '1 day' WHERE task_id = ANY(%s)",
            [t["task_id"] for t in self.tasks()],
        )
        self.one.rows(
            "UPDATE tasks SET finished_at = now() - interval '1 day'"
            " WHERE finished_at IS NOT NULL AND task_id = ANY(%s)",
            [t["task_id"] for t in self.tasks()],
        )


@pytest.fixture
def source(one: Bench) -> Source:
    made = Source(one, f"s_{uuid4().hex[:12]}")
    made.deploy()
    return made


def test_a_source_gets_one_task_and_a_wake_up(source: Source) -> None:
    (task,) = source.look()
    assert (task["status"], task["attempt"]) == ("Queued", 1)
    woken = source.one.rows("SELECT * FROM outbox WHERE subject = %s", task["task_id"])
    assert [row["kind"] for row in woken] == ["wake_up"]
    assert len(source.look()) == 1


def test_replicas_that_look_at_once_make_one_task(replicas: list[Bench]) -> None:
    made = Source(replicas[0], f"s_{uuid4().hex[:12]}")
    made.deploy()
    looks = [
        lambda b=bench: b.live.run(b.live.service.sources.supervise_once) for bench in replicas
    ]
    at_once(looks * 4)
    assert len(made.look()) == 1


def test_its_payload_has_no_scope_and_no_end(source: Source) -> None:
    attempt = source.running()
    assert attempt.scope == dict.fromkeys(attempt.scope)
    assert attempt.claimed["task"]["timeout_seconds"] >= 86_400 * 365
    assert source.one.heartbeat(attempt).status_code == 200
    assert [t["status"] for t in source.look()] == ["Running"]


@pytest.mark.parametrize("end", ["Completed", "Failed", "final", "Canceled", "reaped"])
def test_whatever_ends_it_it_starts_again_as_the_same_task(source: Source, end: str) -> None:
    one, attempt = source.one, source.running()
    if end == "reaped":
        one.rows(
            "UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE task_id = %s",
            attempt.task_id,
        )
        one.live.run(one.live.service.reaper.reap_once)
    elif end in ("Failed", "final"):
        one.complete(attempt, "Failed", error_code="x", retryable=end == "Failed")
    else:
        one.complete(attempt, end)
    assert one.status(attempt.task_id) == ("Failed" if end in ("final", "reaped") else end)
    source.forget_the_past()
    (task,) = source.look()
    assert (str(task["task_id"]), task["status"], task["attempt"]) == (attempt.task_id, "Queued", 2)
    again = one.claimed(attempt.task_id)
    assert again.number == 2
    assert one.heartbeat(attempt).status_code == 409  # the dead attempt stays dead


def test_it_has_no_attempt_limit(source: Source) -> None:
    attempt = source.running()
    for number in range(1, 8):
        assert attempt.number == number
        source.one.complete(attempt, "Failed", error_code="x", retryable=True)
        source.forget_the_past()
        source.look()
        attempt = source.one.claimed(attempt.task_id)


def test_one_that_dies_at_once_again_and_again_waits_longer_each_time(source: Source) -> None:
    def waits() -> float:
        """Seconds until the next start, by moving the end into the past until it starts."""
        back = 0.0
        while source.look()[0]["status"] != "Queued":
            back += 0.25
            for table, column in (("task_attempts", "ended_at"), ("tasks", "finished_at")):
                source.one.rows(
                    f"UPDATE {table} SET {column} = {column} - interval '0.25 s'"
                    f" WHERE task_id = %s AND {column} IS NOT NULL",
                    attempt.task_id,
                )
        return back

    attempt, waited = source.running(), []
    for _ in range(4):
        source.one.complete(attempt, "Failed", error_code="x")
        waited.append(waits())
        attempt = source.one.claimed(attempt.task_id)
    assert waited == sorted(waited)
    assert waited[0] <= 1.0 < 3.0 < waited[-1] <= 8.0


def test_a_restarted_one_learns_how_far_it_had_told(source: Source) -> None:
    attempt = source.running()
    for cursor in (5, 9, 7):
        told = attempt.event(cursor=cursor)
        assert source.one.events(attempt, told).status_code == 200
    source.one.complete(attempt, "Failed", error_code="x")
    source.forget_the_past()
    source.look()
    assert source.one.claimed(attempt.task_id).scope["cursor"] == 9


def test_a_redeploy_that_leaves_it_as_it_is_leaves_it_running(source: Source) -> None:
    attempt = source.running()
    source.deploy(more="  - {name: other, source: {kind: manual}, outputs: [x]}")
    (task,) = source.look()
    assert (task["status"], task["cancel_requested"]) == ("Running", False)
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is False


def test_a_changed_setting_stops_it_and_starts_it_anew_as_the_same_task(source: Source) -> None:
    attempt = source.running()
    source.deploy(heartbeat="60")
    source.look()
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is True
    source.one.complete(attempt, "Canceled")
    source.forget_the_past()
    (task,) = source.look()
    assert (str(task["task_id"]), task["status"]) == (attempt.task_id, "Queued")
    assert (task["lease_seconds"], task["cancel_requested"]) == (60, False)


def test_a_changed_generation_runs_as_a_task_of_its_own_when_the_old_has_stopped(
    source: Source,
) -> None:
    attempt = source.running()
    source.deploy(config="{start_block: 7}")
    old, *new = source.look()
    assert old["cancel_requested"] and new == []  # the old one still runs
    source.one.complete(attempt, "Canceled")
    old, new = source.look()
    assert (old["status"], new["status"]) == ("Canceled", "Queued")
    assert source.look()[0]["status"] == "Canceled"


def test_a_generation_built_beside_the_live_one_runs_beside_it(source: Source) -> None:
    attempt = source.running()
    assert source.one.events(attempt, attempt.event(cursor=5)).status_code == 200
    source.deploy(config="{start_block: 7}")  # the old one has something to serve
    old, new = source.look()
    assert (old["status"], old["cancel_requested"], new["status"]) == ("Running", False, "Queued")
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is False


def test_removing_the_job_stops_it_and_bringing_it_back_starts_it_again(source: Source) -> None:
    attempt = source.running()
    source.remove()
    source.look()
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is True
    source.one.complete(attempt, "Canceled")
    source.forget_the_past()
    assert [t["status"] for t in source.look()] == ["Canceled"]
    source.deploy()
    (task,) = source.look()
    assert (str(task["task_id"]), task["status"]) == (attempt.task_id, "Queued")


def test_pausing_the_job_stops_it_and_resuming_starts_it_again(source: Source) -> None:
    one, (task,) = source.one, source.look()
    place = {"dag": source.name, "job": "follow"}
    assert one.user.post("/v1/pauses", json=place).status_code == 200
    assert [t["status"] for t in source.look()] == ["Canceled"]
    assert one.claim(str(task["task_id"])).json()["status"] == "NotClaimed"
    assert one.user.post("/v1/pauses/resume", json=place).status_code == 200
    (task,) = source.look()
    assert task["status"] == "Queued"
    one.claimed(str(task["task_id"]))
    assert one.user.post("/v1/pauses", json=place).status_code == 200
    assert source.look()[0]["cancel_requested"] is True


READERS = """
  - name: read
    operator: sql
    inputs: [{from: {job: follow}}]
    outputs: [seen]
    config: {sql: "SELECT 1"}
    max_queue_depth: 2
"""


def queued(source: Source) -> int:
    query = """SELECT count(*) AS n
                 FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
                WHERE g.name = %s AND j.name = 'read' AND t.status = 'Queued'"""
    return source.one.rows(query, source.name)[0]["n"]


def test_a_queue_that_pushes_back_holds_a_source_and_does_not_stop_it(source: Source) -> None:
    one = source.one
    source.deploy(more=READERS)
    attempt = source.running()
    assert one.heartbeat(attempt).json()["hold"] is False
    one.events(attempt, attempt.event(cursor=1), attempt.event(cursor=2))
    one.live.drain()
    balance(one)
    balance(one, patience=0)
    (task,) = source.look()
    assert (task["status"], task["cancel_requested"]) == ("Running", False)
    beat = one.heartbeat(attempt).json()
    assert (beat["hold"], beat["cancel_requested"]) == (True, False)
    # One that does not listen creates nothing all the same.
    assert one.events(attempt, attempt.event(cursor=3)).json()["accepted"] == 1
    one.live.drain()
    assert queued(source) == 2
    one.rows("UPDATE tasks SET status = 'Canceled' WHERE status = 'Queued' AND cursor_value < 3")
    balance(one, patience=0)
    balance(one, patience=0)
    one.live.drain()
    assert one.heartbeat(attempt).json()["hold"] is False
    assert queued(source) == 1


def test_a_source_that_ends_while_it_is_held_starts_when_it_may_go_on(source: Source) -> None:
    one = source.one
    source.deploy(more=READERS)
    attempt = source.running()
    one.events(attempt, attempt.event(cursor=1), attempt.event(cursor=2))
    one.live.drain()
    balance(one)
    balance(one, patience=0)
    one.complete(attempt, "Failed")
    source.forget_the_past()
    assert [t["status"] for t in source.look()] == ["Failed"]
    one.rows("UPDATE tasks SET status = 'Canceled' WHERE status = 'Queued'")
    balance(one, patience=0)
    balance(one, patience=0)
    assert [t["status"] for t in source.look()] == ["Queued"]


def test_canceling_it_by_hand_only_restarts_it(source: Source) -> None:
    (task,) = source.look()
    assert source.one.cancel(str(task["task_id"])).status_code == 200
    assert [t["status"] for t in source.look()] == ["Queued"]
