"""A worker whose Dispatcher becomes unavailable and returns. Real processes, no Spark."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from support import queue_tables
from support.lifecycle.recorder import Recorder
from support.processes import DispatcherProcess
from support.services.dispatcher import Secrets
from support.services.postgres import sql
from support.waiting import eventually
from trace_etl.api.task import lifecycle as bodies
from trace_etl.http.clients.dispatcher_client import DispatcherClient
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.model.errors import TraceError
from trace_etl.policy.retry import Backoff
from trace_etl.queues.pgqueue import PgConsumer
from trace_etl.queues.queue import Message
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.functions.threaded_runner import ThreadedRunner
from trace_etl.worker.settings import ServedRuntimes
from trace_etl.worker.slots import Slots

DAG = """
name: resilient
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [out]
    heartbeat_timeout: {lease}
    config: {{sql: "SELECT 1 FROM ranges"}}
"""
QUICK = {
    "TRACE_RETRY_INITIAL": "PT0.2S",
    "TRACE_RETRY_MAX": "PT1S",
    "TRACE_OUTBOX_HOLD": "PT1S",
    "TRACE_REAPER_GRACE": "PT0S",
}
BACKOFF = Backoff(timedelta(seconds=0.1), timedelta(seconds=0.5))


class Interrupted(TraceError):
    code = "interrupted"


@dataclass
class ControlledRunner:
    """A runner whose operator finishes when the test allows it."""

    started: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    canceled: threading.Event = field(default_factory=threading.Event)
    runs: list[int] = field(default_factory=list)

    def run(self, task: bodies.TaskPayload, link: DispatcherLink) -> bodies.TaskResult:
        self.runs.append(task.attempt)
        self.started.set()
        while not self.released.wait(0.02):
            if self.canceled.is_set():
                self.canceled.clear()
                raise Interrupted("the task was canceled")
        return bodies.TaskResult()

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        self.canceled.set()


@dataclass
class Scene:
    dispatcher: DispatcherProcess
    dsns: Dsns
    secrets: Secrets
    recorder: Recorder = field(default_factory=Recorder)
    runner: ControlledRunner = field(default_factory=ControlledRunner)
    consumer_type: Callable[[str, list[str], str], PgConsumer] = PgConsumer

    def queue_task(self, lease: str = "20s") -> None:
        """Create one task of `work`, with its wake-up in the queue."""
        self.trigger_task(lease)
        eventually(lambda: self.messages() == 1, "the wake-up is in the queue")

    def trigger_task(self, lease: str = "20s") -> None:
        headers = {"Authorization": f"Bearer {self.secrets.user_token}"}
        url, ca = self.dispatcher.api_url, str(self.secrets.ca)
        with httpx.Client(verify=_context(ca), headers=headers, trust_env=False) as http:
            for path, body in (
                ("/v1/dags", {"text": DAG.format(lease=lease)}),
                ("/v1/triggers", {"dag": "resilient", "job": "request", "start": 0, "end": 9}),
            ):
                assert http.post(f"{url}{path}", json=body).status_code == 200

    def messages(self) -> int:
        return queue_tables.count(self.dsns.queue)

    def task(self) -> tuple[str, int]:
        query = "SELECT status, attempt FROM tasks JOIN jobs USING (job_id) WHERE name = 'work'"
        return sql(self.dsns.state, query)[0]

    def let_first_lease_expire(self) -> None:
        """Expire the lease of the first attempt, if it is running."""
        first = "status = 'Running' AND attempt = 1"
        for (task_id,) in sql(self.dsns.state, f"SELECT task_id FROM tasks WHERE {first}"):
            self.recorder.record_expiry(task_id)
        sql(self.dsns.state, f"UPDATE tasks SET lease_expires_at = now() WHERE {first}")

    @contextmanager
    def worker(self) -> Generator[None]:
        """Run a worker with one slot in threads of this process."""
        stop = threading.Event()
        token = self.secrets.worker_token
        ca = self.secrets.ca
        client = DispatcherClient(self.dispatcher.internal_url, ca, lambda: token, BACKOFF)
        self.recorder.watch_worker(client, "w")
        consumer = self.consumer_type(self.dsns.queue, ["ecs_python"], "w")
        served = ServedRuntimes({}, {"ecs_python": 1}, 1)
        runner = ThreadedRunner(self.runner, 1)
        slots = Slots(consumer, client, runner, served, worker_id="w", stop=stop)
        thread = threading.Thread(target=slots.run, name="worker")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(120)
            consumer.close()
            client.close()
            assert not thread.is_alive()
            runner.close()

    def calls(self, name: str, *, answered: bool) -> int:
        """Count the calls of a kind that were answered with 200, or those that were not."""
        found = [call for call in self.recorder.calls() if call["call"] == name]
        return sum((c.get("answer", {}).get("status") == 200) == answered for c in found)

    def refused(self, name: str) -> bool:
        found = [call for call in self.recorder.calls() if call["call"] == name]
        return any(c.get("answer", {}).get("status") == 409 for c in found)

    def check_history(self) -> None:
        self.recorder.dump(self.dsns)
        verdict = self.recorder.verdict()
        assert verdict.proven, verdict.violations


@pytest.fixture
def scene(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Scene]:
    dispatcher = DispatcherProcess(secrets, dsns, tmp_path / "dispatcher", dict(QUICK)).up()
    try:
        yield Scene(dispatcher, dsns, secrets)
    finally:
        dispatcher.kill()


def _context(ca: str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=ca)


def test_a_completion_during_an_outage_is_reported_afterwards(scene: Scene) -> None:
    scene.queue_task()
    with scene.worker():
        assert scene.runner.started.wait(120)
        scene.dispatcher.kill()
        scene.runner.released.set()
        eventually(
            lambda: scene.calls("complete", answered=False) >= 2, "the completion is retried"
        )
        scene.dispatcher.up()
        eventually(lambda: scene.task() == ("Completed", 1), "the same attempt is completed")
    assert scene.runner.runs == [1]
    scene.check_history()


def test_an_attempt_survives_an_outage_shorter_than_its_lease(scene: Scene) -> None:
    scene.queue_task(lease="16s")
    with scene.worker():
        assert scene.runner.started.wait(120)
        scene.dispatcher.stop()
        answered_before = scene.calls("heartbeat", answered=True)
        eventually(lambda: scene.calls("heartbeat", answered=False) >= 2, "heartbeats continue")
        scene.dispatcher.up()
        eventually(
            lambda: scene.calls("heartbeat", answered=True) > answered_before,
            "a heartbeat is answered",
        )
        scene.runner.released.set()
        eventually(lambda: scene.task() == ("Completed", 1), "the same attempt is completed")
    assert scene.runner.runs == [1]
    scene.check_history()


def test_an_attempt_survives_a_longer_outage_if_no_other_attempt_started(
    scene: Scene,
) -> None:
    scene.queue_task(lease="4s")
    with scene.worker():
        assert scene.runner.started.wait(120)
        scene.dispatcher.kill()
        scene.let_first_lease_expire()
        answered_before = scene.calls("heartbeat", answered=True)
        scene.dispatcher.settings["TRACE_REAPER_GRACE"] = "PT20S"
        # A Dispatcher may start faster than the shortest outage that the reaper recognises.
        sql(scene.dsns.state, "UPDATE lease_clock SET seen_at = seen_at - interval '10 s'")
        scene.dispatcher.up()
        eventually(
            lambda: scene.calls("heartbeat", answered=True) > answered_before,
            "a heartbeat is answered",
        )
        scene.runner.released.set()
        eventually(lambda: scene.task() == ("Completed", 1), "the same attempt is completed")
    assert scene.runner.runs == [1]
    scene.check_history()


def test_an_attempt_that_lost_its_lease_in_an_outage_is_followed_by_another(
    scene: Scene,
) -> None:
    scene.queue_task(lease="4s")
    with scene.worker():
        assert scene.runner.started.wait(120)
        scene.dispatcher.kill()
        scene.let_first_lease_expire()
        scene.dispatcher.up()

        def is_followed() -> bool:
            scene.let_first_lease_expire()  # a heartbeat may have extended it before the reaper ran
            return scene.runner.runs[-1] > 1

        eventually(is_followed, "the next attempt runs")
        scene.runner.released.set()
        eventually(lambda: scene.task()[0] == "Completed", "the task is completed")
    ended = sql(scene.dsns.state, "SELECT cause FROM task_attempts WHERE attempt = 1")
    assert ended == [("lease_expired",)]  # the worker is alive and still listens
    scene.check_history()


class UncancelableRunner(ControlledRunner):
    """A runner whose operator ignores cancellation."""

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        pass


def test_a_late_completion_is_accepted_until_the_next_attempt_starts(
    scene: Scene,
) -> None:
    scene.runner = UncancelableRunner()
    scene.queue_task(lease="4s")
    with scene.worker():
        assert scene.runner.started.wait(120)
        scene.dispatcher.kill()
        scene.let_first_lease_expire()
        scene.dispatcher.settings["TRACE_RETRY_INITIAL"] = "PT1H"
        scene.dispatcher.settings["TRACE_RETRY_MAX"] = "PT1H"
        scene.dispatcher.up()

        def is_refused() -> bool:
            scene.let_first_lease_expire()  # a heartbeat may have extended it before the reaper ran
            return scene.refused("heartbeat")

        eventually(is_refused, "a heartbeat is refused")
        assert scene.task() == ("Failed", 1)
        scene.runner.released.set()
        eventually(lambda: scene.task() == ("Completed", 1), "the late completion is accepted")
    scene.check_history()


def test_a_task_woken_before_an_outage_is_claimed_right_after_it(
    scene: Scene,
) -> None:
    received: list[int] = []

    class CountingConsumer(PgConsumer):
        def receive(self, **options: Any) -> list[Message]:
            messages = super().receive(**options)
            received.extend(message.receive_count for message in messages)
            return messages

    scene.queue_task()
    scene.runner.released.set()
    scene.dispatcher.kill()
    scene.consumer_type = CountingConsumer
    with scene.worker():
        eventually(lambda: scene.calls("claim", answered=False) >= 2, "the claim is retried")
        scene.dispatcher.up()
        eventually(lambda: scene.task() == ("Completed", 1), "the task is claimed and completed")
    # The killed Dispatcher may have sent two messages. Neither may be received a second time.
    assert set(received) == {1}, "the worker waited for the message to become visible again"
    scene.check_history()


class BreakingConsumer(PgConsumer):
    """Loses its connection when it deletes the message of the completed task."""

    def delete(self, *messages: Message) -> None:
        self._settling = psycopg.connect(self._dsn, autocommit=True)
        pid = self._settling.info.backend_pid
        with psycopg.connect(self._dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        super().delete(*messages)


def test_a_task_is_completed_although_its_message_cannot_be_deleted(scene: Scene) -> None:
    scene.queue_task()
    scene.runner.released.set()
    scene.consumer_type = BreakingConsumer
    with scene.worker():
        eventually(lambda: scene.task() == ("Completed", 1), "the task is completed")
    assert scene.runner.runs == [1]
    assert scene.messages() == 1
    queue_tables.show_all(scene.dsns.queue)
    scene.consumer_type = PgConsumer
    with scene.worker():
        eventually(lambda: scene.messages() == 0, "its claim finds the task completed")
    assert scene.runner.runs == [1]
    scene.check_history()


def test_a_message_stays_hidden_while_its_task_runs_and_is_deleted_at_the_end(
    scene: Scene,
) -> None:
    scene.queue_task(lease="4s")
    with scene.worker():
        assert scene.runner.started.wait(120)
        queue_tables.show_all(scene.dsns.queue)  # no other worker listens
        answered_before = scene.calls("heartbeat", answered=True)
        eventually(lambda: scene.calls("heartbeat", answered=True) > answered_before, "a heartbeat")
        (seconds,) = queue_tables.seconds_until_visible(scene.dsns.queue)
        assert seconds > 30
        scene.runner.released.set()
        eventually(lambda: scene.messages() == 0, "the message is deleted")
        assert scene.task() == ("Completed", 1)
    scene.check_history()


def test_the_task_of_a_killed_worker_is_completed_by_another_worker(scene: Scene) -> None:
    """The message causes no claim, but the Dispatcher wakes a worker for the next attempt."""
    scene.queue_task(lease="4s")
    killed = PgConsumer(scene.dsns.queue, ["ecs_python"], "killed")
    (message,) = killed.receive(limit=1, visibility=timedelta(seconds=1))
    token = scene.secrets.worker_token
    url, ca = scene.dispatcher.internal_url, scene.secrets.ca
    client = DispatcherClient(url, ca, lambda: token, BACKOFF)
    claimed = client.claim(UUID(message.body["task_id"]), "killed", threading.Event())
    assert claimed.status == "Claimed"
    client.close()
    killed.close()
    scene.runner.released.set()
    with scene.worker():
        eventually(lambda: scene.calls("claim", answered=True) >= 1, "another worker is woken")
        eventually(lambda: scene.task() == ("Completed", 2), "the next attempt is completed")
        eventually(lambda: scene.messages() == 0, "no message is left")
    assert scene.runner.runs == [2]


def test_an_invalid_message_is_deleted_and_the_worker_continues(scene: Scene) -> None:
    scene.runner.released.set()
    queue_tables.send(scene.dsns.queue, "ecs_python", {"task": 1})
    with scene.worker():
        eventually(lambda: scene.messages() == 0, "the message is deleted")
        scene.trigger_task()
        query = "SELECT status FROM tasks JOIN jobs USING (job_id) WHERE name = 'work'"
        done = [("Completed",)]
        eventually(lambda: sql(scene.dsns.state, query) == done, "the next task is completed")
