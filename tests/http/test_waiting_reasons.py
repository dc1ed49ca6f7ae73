"""Every task that is not running shows the reason: in the API and in `trace task`."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner

from support.lifecycle.lifecycle import Bench
from trace_etl.cli.main import app
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.queues.pgqueue import PgQueue


def reason(bench: Bench, task_id: str) -> str | None:
    """Return the reason from the API, which is the same for one task and in the list."""
    task = bench.user.get(f"/v1/tasks/{task_id}").json()
    listed = bench.user.get("/v1/tasks", params={"dag": task["dag"], "limit": 1000}).json()["items"]
    (listed_reason,) = [item["reason"] for item in listed if item["task_id"] == task_id]
    assert listed_reason == task["reason"]
    return listed_reason


@contextmanager
def serving(bench: Bench, runtime: str) -> Generator[None]:
    """Run a worker that listens to a runtime's queue."""
    consumer = PgQueue(bench.live.dsns.queue).consumer([runtime], "worker")
    consumer.receive(limit=1, visibility=timedelta(0))
    yield
    consumer.close()


def test_the_reason_says_that_no_worker_serves_the_runtime(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    queued = shared.row(task_id)["queued_at"]
    since = f"queued since {queued:%Y-%m-%d %H:%M:%S}Z"
    assert reason(shared, task_id) == f"{since}: no worker is ready for runtime ecs_python"
    with serving(shared, "ecs_python"):
        assert reason(shared, task_id) == f"{since}: waiting for a free worker slot"
    assert reason(shared, task_id) == f"{since}: no worker is ready for runtime ecs_python"


def test_the_reason_names_the_user_who_paused_the_job(shared: Bench) -> None:
    (task_id,) = shared.tasks()
    shared.rows(
        "UPDATE jobs SET paused_at = now(), paused_by = 'backpressure of after'"
        " WHERE job_id = (SELECT job_id FROM tasks WHERE task_id = %s)",
        task_id,
    )
    assert str(reason(shared, task_id)).startswith("paused by backpressure of after since ")


def test_the_reason_names_the_cap_of_the_job(shared: Bench) -> None:
    first, second = shared.tasks(2, "scaling: {max_concurrency: 1}")
    attempt = shared.claimed(first)
    assert str(reason(shared, second)).endswith(": the job's max_concurrency of 1 is reached")
    shared.complete(attempt)
    assert "max_concurrency" not in str(reason(shared, second))


def test_the_reason_of_a_failed_task_contains_its_retry_time(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed", error_message="the node is down")
    at = shared.row(attempt.task_id)["retry_at"]
    assert reason(shared, attempt.task_id) == (
        f"retry at {at:%Y-%m-%d %H:%M:%S}Z (attempt 1 failed: the node is down)"
    )


def test_the_reason_of_a_reaped_task_describes_its_worker(shared: Bench) -> None:
    attempt = shared.reaped()
    text = str(reason(shared, attempt.task_id))
    assert text.startswith("retry at ")
    assert "worker w1 sent no heartbeat before its lease expired" in text


def test_the_reason_says_that_a_task_failed_permanently(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt, "Failed", error_message="bad SQL", retryable=False)
    assert reason(shared, attempt.task_id) == "failed permanently at attempt 1 of 3: bad SQL"


def test_the_reason_says_that_a_running_task_was_asked_to_stop(shared: Bench) -> None:
    attempt = shared.attempt()
    assert reason(shared, attempt.task_id) is None
    shared.cancel(attempt.task_id)
    assert reason(shared, attempt.task_id) == "running, cancellation requested"


def test_a_completed_task_has_no_reason(shared: Bench) -> None:
    attempt = shared.attempt()
    shared.complete(attempt)
    assert reason(shared, attempt.task_id) is None


def test_the_cli_shows_the_same_reason(shared: Bench, tmp_path: Path) -> None:
    (task_id,) = shared.tasks()
    home = Home(tmp_path)
    cfg, secrets = shared.live.cfg, shared.live.secrets
    described = connection.describe(
        home, api=cfg.api_port, internal=cfg.internal_port, query=1, pid=1
    )
    own = replace(described, ca=str(secrets.ca), user_token=str(secrets.directory / "user.jwt"))
    connection.write(home.connection, own)
    result = CliRunner().invoke(app, ["task", task_id, "--home", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert str(reason(shared, task_id)) in " ".join(result.output.split())
