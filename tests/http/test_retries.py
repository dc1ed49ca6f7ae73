"""`POST /v1/tasks/retry` and repeated triggers: failed tasks run again, committed blocks are kept."""

from typing import Any
from uuid import uuid4

from support.lifecycle.lifecycle import Bench, Dag, run_concurrently


def fail(bench: Bench, task_id: str, code: str = "operator_failed") -> None:
    """Fail a task permanently."""
    reply = bench.complete(
        bench.claimed(task_id), "Failed", error_code=code, error_message=f"{code} happened"
    )
    assert reply.status_code == 200, reply.text
    bench.rows(
        "UPDATE tasks SET retry_at = NULL, finished_at = now(), max_attempts = attempt"
        " WHERE task_id = %s",
        task_id,
    )


def retry(bench: Bench, **body: Any) -> dict[str, Any]:
    reply = bench.user.post("/v1/tasks/retry", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def trigger(bench: Bench, dag: Dag, start: int, end: int) -> dict[str, Any]:
    body = {"dag": dag.name, "job": "request", "start": start, "end": end}
    reply = bench.user.post("/v1/triggers", json=body)
    assert reply.status_code == 200, reply.text
    bench.live.drain()
    return reply.json()


def scopes(bench: Bench, dag: Dag) -> set[str]:
    """Return the partition keys of all tasks of the job `work`."""
    query = {"dag": dag.name, "job": "work", "limit": 1000}
    return {t["partition_key"] for t in bench.user.get("/v1/tasks", params=query).json()["items"]}


# --- retries on request -------------------------------------------------------------------------


def test_a_failed_task_runs_again_with_all_its_attempts(shared: Bench) -> None:
    dag = shared.dag("max_attempts: 2")
    (task_id,) = shared.tasks(1, dag=dag)
    fail(shared, task_id)
    assert retry(shared, task_ids=[task_id])["retried"] == 1
    assert shared.start_retries() >= 1  # other tests share the Dispatcher
    row = shared.row(task_id)
    assert (row["status"], row["attempt"], row["max_attempts"]) == ("Queued", 2, 3)
    attempt = shared.claimed(task_id)
    reply = shared.complete(attempt, datasets_published=[shared.write_output(attempt)])
    assert reply.json()["task_status"] == "Completed"


def test_a_dry_run_lists_the_tasks_and_changes_nothing(shared: Bench) -> None:
    dag = shared.dag()
    first, second, third = shared.tasks(3, dag=dag)
    fail(shared, first, "rpc_failed")
    fail(shared, second, "rpc_failed")
    fail(shared, third, "operator_failed")
    before = shared.dump()
    answer = retry(shared, dag=dag.name, dry_run=True)
    assert shared.dump() == before
    assert (answer["retried"], answer["dry_run"]) == (3, True)
    groups = {(g["job"], g["error_code"]): g["tasks"] for g in answer["groups"]}
    assert groups == {("work", "rpc_failed"): 2, ("work", "operator_failed"): 1}


def test_choices_narrow_each_other(shared: Bench) -> None:
    dag, other = shared.dag(), shared.dag()
    first, second = shared.tasks(2, dag=dag)
    (elsewhere,) = shared.tasks(1, dag=other)
    fail(shared, first, "rpc_failed")
    fail(shared, second, "operator_failed")
    fail(shared, elsewhere, "rpc_failed")
    answer = retry(shared, dag=dag.name, job="work", error_code="rpc_failed")
    assert [t["task_id"] for t in answer["tasks"]] == [first]
    waiting = {t: shared.row(t)["retry_at"] is not None for t in (first, second, elsewhere)}
    assert waiting == {first: True, second: False, elsewhere: False}


def test_named_tasks_that_did_not_fail_are_skipped_with_the_reason(shared: Bench) -> None:
    dag = shared.dag()
    queued, failed = shared.tasks(2, dag=dag)
    fail(shared, failed)
    answer = retry(shared, task_ids=[queued, failed])
    assert answer["retried"] == 1
    assert answer["skipped"] == [{"task_id": queued, "reason": "it is Queued"}]
    assert shared.user.post("/v1/tasks/retry", json={"task_ids": [str(uuid4())]}).status_code == 404


def test_a_task_of_a_replaced_definition_is_not_retried(shared: Bench) -> None:
    dag = shared.dag()
    (task_id,) = shared.tasks(1, dag=dag)
    fail(shared, task_id)
    shared.dag(name=dag.name, column="2")  # another definition, so another generation
    shared.live.run(shared.live.service.swapper.swap_once)
    answer = retry(shared, dag=dag.name)
    assert answer["retried"] == 0
    assert "another definition" in answer["skipped"][0]["reason"]
    assert shared.row(task_id)["retry_at"] is None


def test_a_request_must_choose_tasks(shared: Bench) -> None:
    for body in ({}, {"job": "work"}, {"task_ids": []}):
        assert shared.user.post("/v1/tasks/retry", json=body).status_code == 422, body


# --- repeated and overlapping ranges --------------------------------------------------------------


def test_overlapping_triggers_create_each_block_once(shared: Bench) -> None:
    dag = shared.dag()
    trigger(shared, dag, 0, 94)
    answer = trigger(shared, dag, 85, 204)
    assert (answer["created"], answer["ranges"]) == (True, ["95-204"])
    assert scopes(shared, dag) >= {"90-94", "95-99", "100-109", "200-204"}
    assert len(scopes(shared, dag)) == 10 + 12  # no block twice: 0-94, then 95-204


def test_a_range_around_an_earlier_one_fills_both_sides(shared: Bench) -> None:
    dag = shared.dag()
    trigger(shared, dag, 40, 49)
    answer = trigger(shared, dag, 20, 69)
    assert answer["ranges"] == ["20-39", "50-69"]
    assert scopes(shared, dag) == {"20-29", "30-39", "40-49", "50-59", "60-69"}


def test_triggering_a_range_again_retries_its_failed_tasks(shared: Bench) -> None:
    dag = shared.dag()
    inside, outside = shared.tasks(2, dag=dag)
    fail(shared, inside)
    fail(shared, outside)
    answer = trigger(shared, dag, 0, 9)
    assert (answer["created"], answer["ranges"], answer["retried"]) == (False, [], 1)
    assert shared.row(inside)["retry_at"] is not None
    assert shared.row(outside)["retry_at"] is None
    assert trigger(shared, dag, 0, 9)["retried"] == 0  # it waits for its attempt already


def test_triggering_a_range_again_runs_its_canceled_tasks(shared: Bench) -> None:
    dag = shared.dag()
    waiting, running, ended, other = shared.tasks(4, dag=dag)
    stopped, finished = shared.claimed(running), shared.claimed(ended)
    for task_id in (waiting, running, other):
        assert shared.cancel(task_id).status_code == 200
    published = shared.write_output(finished)
    reply = shared.complete(finished, datasets_published=[published], events=[finished.event()])
    assert reply.status_code == 200, reply.text

    answer = trigger(shared, dag, 0, 29)
    assert (answer["created"], answer["ranges"], answer["retried"]) == (False, [], 2)
    assert set(answer["retried_task_ids"]) == {waiting, running}
    assert shared.status(ended) == "Completed" and shared.status(other) == "Canceled"
    assert trigger(shared, dag, 0, 29)["retried"] == 0
    # An attempt that was asked to stop cannot complete the task any more.
    late = shared.complete(stopped, datasets_published=[shared.write_output(stopped)])
    assert late.status_code == 409, late.text
    for task_id in (waiting, running):
        attempt = shared.claimed(task_id)
        published = shared.write_output(attempt)
        reply = shared.complete(attempt, datasets_published=[published], events=[attempt.event()])
        assert reply.status_code == 200, reply.text


def test_concurrent_overlapping_triggers_emit_no_block_twice(shared: Bench) -> None:
    dag = shared.dag()
    body = {"dag": dag.name, "job": "request"}
    ranges = [(n * 7, n * 7 + 30) for n in range(8)]
    run_concurrently(
        [
            lambda a=a, b=b: shared.user.post("/v1/triggers", json={**body, "start": a, "end": b})
            for a, b in ranges
        ]
    )
    shared.live.drain()
    spans = sorted(tuple(map(int, key.split("-"))) for key in scopes(shared, dag))
    blocks = [n for start, end in spans for n in range(start, end + 1)]
    assert blocks == list(range(80))


def test_a_job_shows_how_many_tasks_failed_permanently_and_the_last_error(shared: Bench) -> None:
    dag = shared.dag("max_attempts: 2")
    first, second = shared.tasks(2, dag=dag)
    fail(shared, first, "one")
    fail(shared, second, "two")
    job = shared.user.get(f"/v1/jobs/{dag.name}/work").json()
    assert (job["failed"], job["last_failure"]["error_code"]) == (2, "two")
    listed = shared.user.get("/v1/jobs", params={"dag": dag.name}).json()["items"]
    assert {item["job"]: item["failed"] for item in listed}["work"] == 2
    retry(shared, task_ids=[first, second])
    job = shared.user.get(f"/v1/jobs/{dag.name}/work").json()
    assert (job["failed"], job["retrying"]) == (0, 2)


# --- the policy of a job ------------------------------------------------------------------------


def fail_unreachable(bench: Bench, task_id: str) -> None:
    reply = bench.complete(
        bench.claimed(task_id),
        "Failed",
        error_code="rpc_unreachable",
        error_message="no answer",
        unreachable=True,
    )
    assert reply.status_code == 200, reply.text


def test_attempts_that_find_no_endpoint_do_not_count(shared: Bench) -> None:
    (task_id,) = shared.tasks(1, "max_attempts: 2")
    for _ in range(5):
        fail_unreachable(shared, task_id)
        row = shared.row(task_id)
        assert (row["status"], row["retry_at"] is not None) == ("Failed", True)
        shared.let_retry_fall_due(task_id)
        shared.start_retries()
    row = shared.row(task_id)
    assert (row["status"], row["attempt"], row["max_attempts"]) == ("Queued", 6, 7)
    # Other errors still have all their attempts.
    shared.complete(shared.claimed(task_id), "Failed", error_code="operator_failed")
    assert shared.row(task_id)["retry_at"] is not None
    shared.let_retry_fall_due(task_id)
    shared.start_retries()
    shared.complete(shared.claimed(task_id), "Failed", error_code="operator_failed")
    assert shared.row(task_id)["retry_at"] is None


def test_an_endpoint_is_not_waited_for_longer_than_the_job_allows(shared: Bench) -> None:
    (task_id,) = shared.tasks(1, "retry: {attempts: 1, unreachable: 1h}")
    fail_unreachable(shared, task_id)
    shared.let_retry_fall_due(task_id)
    shared.start_retries()
    shared.rows(
        "UPDATE tasks SET unreachable_since = now() - interval '2 hours', max_attempts = attempt"
        " WHERE task_id = %s",
        task_id,
    )
    fail_unreachable(shared, task_id)
    row = shared.row(task_id)
    assert (row["retry_at"], row["finished_at"] is not None) == (None, True)


def test_the_delays_are_those_of_the_job(shared: Bench) -> None:
    (task_id,) = shared.tasks(1, "retry: {attempts: 9, delay: 1000s, max_delay: 3000s}")
    for shortest, longest in ((500, 1500), (1000, 3000), (1500, 3000), (1500, 3000)):
        # Doubled, spread by half, and never longer than `max_delay`.
        shared.complete(shared.claimed(task_id), "Failed", error_code="operator_failed")
        (spread,) = shared.rows(
            """
            SELECT extract(epoch FROM min(d))::int AS first, extract(epoch FROM max(d))::int AS last
              FROM (SELECT next_attempt_of(t, 0, '1 second', false) - now() AS d
                      FROM tasks t CROSS JOIN generate_series(1, 300) WHERE task_id = %s) delays
            """,
            task_id,
        )
        assert shortest <= spread["first"] < shortest * 1.2
        assert longest * 0.9 < spread["last"] <= longest
        (delay,) = shared.rows(
            "SELECT extract(epoch FROM retry_at - now())::float8 AS seconds FROM tasks"
            " WHERE task_id = %s",
            task_id,
        )
        assert shortest - 120 < delay["seconds"] <= longest
        shared.let_retry_fall_due(task_id)
        shared.start_retries()
