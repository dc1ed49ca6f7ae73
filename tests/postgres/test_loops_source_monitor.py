"""`always_on` sources: the monitor keeps exactly one task per source until the job is removed."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Queue
from typing import Any
from uuid import UUID, uuid4

import pytest

from support.dags.pressure import balance
from support.lifecycle.lifecycle import Attempt, Bench, run_concurrently
from support.services.dispatcher import MAX_SECONDS
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskPayload
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.worker.settings import WorkerSettings
from trace_etl.worker.slots import work_on_endless

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
    """A DAG with one `always_on` source and its tasks."""

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

    def supervise(self) -> list[dict[str, Any]]:
        """Run the monitor once and return the tasks of the source, oldest first."""
        self.one.live.run(self.one.live.service.sources.supervise_once)
        return self.tasks()

    def tasks(self) -> list[dict[str, Any]]:
        return self.one.rows(
            "SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)"
            " WHERE g.name = %s AND j.name = 'follow' ORDER BY t.created_at",
            self.name,
        )

    def running(self) -> Attempt:
        (task,) = [t for t in self.supervise() if t["status"] == "Queued"]
        return self.one.claimed(str(task["task_id"]))

    def age_ended_attempts(self) -> None:
        """Pretend that the ended attempts ended long ago."""
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


def test_an_always_on_source_gets_one_task_and_one_wake_up(source: Source) -> None:
    (task,) = source.supervise()
    assert (task["status"], task["attempt"]) == ("Queued", 1)
    woken = source.one.rows("SELECT * FROM outbox WHERE subject = %s", task["task_id"])
    assert [row["kind"] for row in woken] == ["wake_up"]
    assert len(source.supervise()) == 1


class Following:
    """A runner whose tasks run until they are canceled."""

    def __init__(self) -> None:
        self.started: Queue[str] = Queue()
        self._running: dict[UUID, Future[TaskResult]] = {}

    def start(self, task: TaskPayload, link: object) -> Future[TaskResult]:
        self._running[task.task_id] = Future()
        self.started.put(task.job.dag_name)
        return self._running[task.task_id]

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        self._running.pop(task_id).set_result(TaskResult())


def test_a_worker_follows_a_chain_before_it_takes_other_tasks(source: Source) -> None:
    """Its Spark is not started yet, or all its slots are in use."""
    one, runner, stop = source.one, Following(), threading.Event()
    live = one.live
    cfg = WorkerSettings.model_validate(
        {
            "dispatcher_url": f"https://127.0.0.1:{live.cfg.internal_port}",
            "tls_ca": live.secrets.ca,
            "worker_token_file": live.secrets.directory / "worker",
            "worker_id": "w",
            "queue_dsn": live.cfg.queue_dsn,
            "objects_url": live.cfg.objects_url,
            "spark_dir": live.objects,
        }
    )
    source.supervise()
    live.drain()
    with work_on_endless(cfg, PgQueue(cfg.queue_dsn), runner, stop):
        while runner.started.get(timeout=MAX_SECONDS) != source.name:
            pass  # the source of another test
    assert stop.is_set()


def test_concurrent_monitors_of_two_replicas_create_one_task(replicas: list[Bench]) -> None:
    made = Source(replicas[0], f"s_{uuid4().hex[:12]}")
    made.deploy()
    passes = [
        lambda b=bench: b.live.run(b.live.service.sources.supervise_once) for bench in replicas
    ]
    run_concurrently(passes * 4)
    assert len(made.supervise()) == 1


def test_the_payload_of_an_always_on_task_has_no_scope_and_no_end(source: Source) -> None:
    attempt = source.running()
    assert attempt.scope == dict.fromkeys(attempt.scope)
    assert attempt.claimed["task"]["timeout_seconds"] >= 86_400 * 365
    assert source.one.heartbeat(attempt).status_code == 200
    assert [t["status"] for t in source.supervise()] == ["Running"]


@pytest.mark.parametrize("end", ["Completed", "Failed", "final", "Canceled", "reaped"])
def test_an_ended_source_task_is_started_again_as_the_same_task(source: Source, end: str) -> None:
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
    source.age_ended_attempts()
    (task,) = source.supervise()
    assert (str(task["task_id"]), task["status"], task["attempt"]) == (attempt.task_id, "Queued", 2)
    again = one.claimed(attempt.task_id)
    assert again.number == 2
    assert one.heartbeat(attempt).status_code == 409  # the ended attempt stays ended


def test_an_always_on_source_has_no_attempt_limit(source: Source) -> None:
    attempt = source.running()
    for number in range(1, 8):
        assert attempt.number == number
        source.one.complete(attempt, "Failed", error_code="x", retryable=True)
        source.age_ended_attempts()
        source.supervise()
        attempt = source.one.claimed(attempt.task_id)


def test_a_source_that_keeps_failing_restarts_with_growing_delays(source: Source) -> None:
    def restart_delay() -> float:
        """Return the delay until the next start, by moving the end into the past until it starts."""
        back = 0.0
        while source.supervise()[0]["status"] != "Queued":
            back += 0.25
            for table, column in (("task_attempts", "ended_at"), ("tasks", "finished_at")):
                source.one.rows(
                    f"UPDATE {table} SET {column} = {column} - interval '0.25 s'"
                    f" WHERE task_id = %s AND {column} IS NOT NULL",
                    attempt.task_id,
                )
        return back

    attempt, delays = source.running(), []
    for _ in range(4):
        source.one.complete(attempt, "Failed", error_code="x")
        delays.append(restart_delay())
        attempt = source.one.claimed(attempt.task_id)
    assert delays == sorted(delays)
    assert delays[0] <= 1.0 < 3.0 < delays[-1] <= 8.0


def test_a_restarted_source_receives_its_highest_announced_cursor(source: Source) -> None:
    attempt = source.running()
    for cursor in (5, 9, 7):
        event = attempt.event(cursor=cursor)
        assert source.one.events(attempt, event).status_code == 200
    source.one.complete(attempt, "Failed", error_code="x")
    source.age_ended_attempts()
    source.supervise()
    assert source.one.claimed(attempt.task_id).scope["cursor"] == 9


def test_a_redeploy_that_does_not_change_the_source_does_not_stop_it(source: Source) -> None:
    attempt = source.running()
    source.deploy(more="  - {name: other, source: {kind: manual}, outputs: [x]}")
    (task,) = source.supervise()
    assert (task["status"], task["cancel_requested"]) == ("Running", False)
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is False


def test_a_changed_setting_restarts_the_source_as_the_same_task(source: Source) -> None:
    attempt = source.running()
    source.deploy(heartbeat="60")
    source.supervise()
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is True
    source.one.complete(attempt, "Canceled")
    source.age_ended_attempts()
    (task,) = source.supervise()
    assert (str(task["task_id"]), task["status"]) == (attempt.task_id, "Queued")
    assert (task["lease_seconds"], task["cancel_requested"]) == (60, False)


def test_a_new_generation_starts_its_own_task_after_the_old_task_stopped(
    source: Source,
) -> None:
    attempt = source.running()
    source.deploy(config="{start_block: 7}")
    old, *new = source.supervise()
    assert old["cancel_requested"] and new == []  # the old task still runs
    source.one.complete(attempt, "Canceled")
    old, new = source.supervise()
    assert (old["status"], new["status"]) == ("Canceled", "Queued")
    assert source.supervise()[0]["status"] == "Canceled"


def test_a_generation_that_is_built_beside_the_live_one_runs_concurrently(source: Source) -> None:
    attempt = source.running()
    assert source.one.events(attempt, attempt.event(cursor=5)).status_code == 200
    source.deploy(config="{start_block: 7}")  # the old generation already serves data
    old, new = source.supervise()
    assert (old["status"], old["cancel_requested"], new["status"]) == ("Running", False, "Queued")
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is False


def test_removing_the_job_stops_the_source_and_restoring_it_restarts_it(source: Source) -> None:
    attempt = source.running()
    source.remove()
    source.supervise()
    assert source.one.heartbeat(attempt).json()["cancel_requested"] is True
    source.one.complete(attempt, "Canceled")
    source.age_ended_attempts()
    assert [t["status"] for t in source.supervise()] == ["Canceled"]
    source.deploy()
    (task,) = source.supervise()
    assert (str(task["task_id"]), task["status"]) == (attempt.task_id, "Queued")


def test_pausing_the_job_stops_the_source_and_resuming_restarts_it(source: Source) -> None:
    one, (task,) = source.one, source.supervise()
    place = {"dag": source.name, "job": "follow"}
    assert one.user.post("/v1/pauses", json=place).status_code == 200
    assert [t["status"] for t in source.supervise()] == ["Canceled"]
    assert one.claim(str(task["task_id"])).json()["status"] == "NotClaimed"
    assert one.user.post("/v1/pauses/resume", json=place).status_code == 200
    (task,) = source.supervise()
    assert task["status"] == "Queued"
    one.claimed(str(task["task_id"]))
    assert one.user.post("/v1/pauses", json=place).status_code == 200
    assert source.supervise()[0]["cancel_requested"] is True


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


def test_backpressure_holds_a_source_without_stopping_it(source: Source) -> None:
    one = source.one
    source.deploy(more=READERS)
    attempt = source.running()
    assert one.heartbeat(attempt).json()["hold"] is False
    one.events(attempt, attempt.event(cursor=1), attempt.event(cursor=2))
    one.live.drain()
    balance(one)
    balance(one, escalate_after=0)
    (task,) = source.supervise()
    assert (task["status"], task["cancel_requested"]) == ("Running", False)
    beat = one.heartbeat(attempt).json()
    assert (beat["hold"], beat["cancel_requested"]) == (True, False)
    # A worker that ignores the hold still creates no tasks.
    assert one.events(attempt, attempt.event(cursor=3)).json()["accepted"] == 1
    one.live.drain()
    assert queued(source) == 2
    one.rows("UPDATE tasks SET status = 'Canceled' WHERE status = 'Queued' AND cursor_value < 3")
    balance(one, escalate_after=0)
    balance(one, escalate_after=0)
    one.live.drain()
    assert one.heartbeat(attempt).json()["hold"] is False
    assert queued(source) == 1


def test_a_source_that_ends_during_backpressure_restarts_afterwards(source: Source) -> None:
    one = source.one
    source.deploy(more=READERS)
    attempt = source.running()
    one.events(attempt, attempt.event(cursor=1), attempt.event(cursor=2))
    one.live.drain()
    balance(one)
    balance(one, escalate_after=0)
    one.complete(attempt, "Failed")
    source.age_ended_attempts()
    assert [t["status"] for t in source.supervise()] == ["Failed"]
    one.rows("UPDATE tasks SET status = 'Canceled' WHERE status = 'Queued'")
    balance(one, escalate_after=0)
    balance(one, escalate_after=0)
    assert [t["status"] for t in source.supervise()] == ["Queued"]


def test_canceling_the_task_of_an_always_on_source_only_restarts_it(source: Source) -> None:
    (task,) = source.supervise()
    assert source.one.cancel(str(task["task_id"])).status_code == 200
    assert [t["status"] for t in source.supervise()] == ["Queued"]
