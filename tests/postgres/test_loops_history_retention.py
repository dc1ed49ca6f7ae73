"""History retention deletes what ended long ago, unless something still refers to it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from support.lifecycle.lifecycle import Attempt, Bench, Dag, run_concurrently


def retain(bench: Bench, **changes: object) -> int:
    return bench.live.run(replace(bench.live.service.retention, **changes).delete_once)


def age(bench: Bench, days: int) -> None:
    """Let a pass find the unused generations, and then let time pass."""
    retain(bench)
    bench.rows("UPDATE tasks SET finished_at = finished_at - make_interval(days => %s)", days)
    bench.rows(
        "UPDATE dataset_versions SET abandoned_at = abandoned_at - make_interval(days => %s)", days
    )


def finish_tasks(bench: Bench, dag: Dag, count: int) -> list[Attempt]:
    attempts = [bench.claimed(task_id) for task_id in bench.tasks(count, dag=dag)]
    for attempt in attempts:
        assert bench.complete(attempt, events=[attempt.event()]).status_code == 200
    bench.live.drain()
    return attempts


def count_existing(bench: Bench, attempts: list[Attempt]) -> int:
    ids = [attempt.task_id for attempt in attempts]
    return len(bench.rows("SELECT 1 FROM tasks WHERE task_id = ANY(%s::uuid[])", ids))


def test_finished_tasks_of_old_generations_are_deleted_with_their_history(alone: Bench) -> None:
    dag = alone.dag()
    old = finish_tasks(alone, dag, 4)
    redeploy(alone, dag)
    age(alone, 31)
    before = alone.rows("SELECT 1 FROM task_attempts")
    assert before
    while retain(alone):
        pass
    assert count_existing(alone, old) == 0
    ids = [attempt.task_id for attempt in old]
    for table, column in (("task_attempts", "task_id"), ("events", "producer_task_id")):
        assert alone.rows(f"SELECT 1 FROM {table} WHERE {column} = ANY(%s::uuid[])", ids) == []


def redeploy(bench: Bench, dag: Dag) -> None:
    """Give every job except the source two new generations: a rollback does not reach the first one."""
    for size in (7, 8):
        deploy_size(bench, dag, size)


def deploy_size(bench: Bench, dag: Dag, size: int) -> None:
    text = f"""
name: {dag.name}
jobs:
  - name: request
    activation: source
    source: {{kind: manual}}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: request}}}}]
    outputs: [ranges]
    config: {{size: {size}}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: split}}}}]
    outputs: [out]
    config: {{sql: "SELECT {size} FROM ranges"}}
"""
    assert bench.user.post("/v1/dags", json={"text": text}).status_code == 200
    # Promote the generations that this deploy builds, without waiting for their partitions. 409: there is
    # nothing to build.
    assert bench.user.post(f"/v1/dags/{dag.name}/promote").status_code in (200, 409)


def test_recently_finished_tasks_are_kept(alone: Bench) -> None:
    dag = alone.dag()
    old = finish_tasks(alone, dag, 2)
    redeploy(alone, dag)
    age(alone, 29)
    assert retain(alone) == 0
    assert count_existing(alone, old) == 2


def test_a_generation_that_a_rollback_restores_is_kept_whole(alone: Bench) -> None:
    dag = alone.dag()
    first, second = (alone.claimed(task_id) for task_id in alone.tasks(2, dag=dag))
    published = alone.write_output(first)
    assert alone.complete(first, datasets_published=[published]).status_code == 200
    assert alone.complete(second).status_code == 200
    deploy_size(alone, dag, 7)
    age(alone, 400)
    while retain(alone):
        pass
    assert count_existing(alone, [first, second]) == 2
    assert alone.rows("SELECT 1 FROM task_attempts WHERE task_id = %s", first.task_id)
    deploy_size(alone, dag, 8)
    age(alone, 31)
    while retain(alone):
        pass
    assert count_existing(alone, [first, second]) == 0
    assert alone.rows("SELECT 1 FROM partitions WHERE task_id = %s", first.task_id) == []


def test_events_of_a_live_generation_are_kept_so_that_its_tasks_are_not_repeated(
    alone: Bench,
) -> None:
    dag = alone.dag()
    done = finish_tasks(alone, dag, 2)
    age(alone, 400)
    while retain(alone):
        pass
    assert count_existing(alone, done) == 2
    (event,) = alone.rows(
        "SELECT e.event_id FROM events e JOIN tasks t ON t.task_id = e.producer_task_id"
        " WHERE t.job_id = (SELECT job_id FROM jobs WHERE name = 'split') LIMIT 1"
    )
    alone.rows("INSERT INTO outbox (kind, subject) VALUES ('route_event', %s)", event["event_id"])
    alone.live.drain()
    assert alone.waiting(dag, "work") == []


@pytest.mark.parametrize("state", ["Queued", "Running", "retry"])
def test_an_unfinished_task_is_never_deleted(alone: Bench, state: str) -> None:
    dag = alone.dag()
    (task_id,) = alone.tasks(1, dag=dag)
    if state != "Queued":
        attempt = alone.claimed(task_id)
        if state == "retry":
            alone.complete(attempt, "Failed")
    alone.rows("UPDATE tasks SET created_at = now() - interval '9 years'")
    alone.rows("UPDATE datasets SET dataset_version = NULL")  # no dataset points to its generation
    retain(alone, retention=timedelta(0))
    assert alone.row(task_id)


def test_a_pass_is_bounded_and_two_replicas_delete_each_task_once(
    replicas: list[Bench],
) -> None:
    first, second = replicas
    dag = first.dag()
    old = finish_tasks(first, dag, 40)
    redeploy(first, dag)
    age(first, 31)
    assert 0 < retain(first, batch_size=5) <= 4 * 5, "so many rows of each kind"
    assert count_existing(first, old) > 0
    counts = run_concurrently([lambda b=b: retain(b) for b in (first, second, first, second)])
    total = sum(counts) + retain(first)
    assert total >= 35
    assert count_existing(first, old) == 0


# --- invalidations and lineage ----------------------------------------------------------------


def commit_partitions(bench: Bench, dag: Dag, job: str) -> None:
    """Run every queued task of a job, publishing its partition."""
    for task_id in bench.waiting(dag, job):
        attempt = bench.claimed(task_id)
        published = [bench.write_output(attempt)]
        done = bench.complete(attempt, datasets_published=published, events=[attempt.event()])
        assert done.status_code == 200, done.text
    bench.live.drain()


def lineage(bench: Bench) -> int:
    return bench.rows("SELECT count(*) AS n FROM partition_inputs")[0]["n"]


def test_an_invalidation_is_deleted_after_every_consumer_processed_it(alone: Bench) -> None:
    dag = alone.dag()
    alone.tasks(2, dag=dag)
    commit_partitions(alone, dag, "work")
    commit_partitions(alone, dag, "after")
    path = f"/v1/datasets/{dag.published}/invalidations"
    for key in ("0-9", "10-19"):
        assert alone.user.post(path, json={"partition_key": key, "reason": "x"}).status_code == 200
    alone.live.drain()
    first, second = (alone.claimed(task_id) for task_id in alone.waiting(dag, "after"))
    assert alone.complete(first).status_code == 200
    alone.rows("UPDATE invalidations SET made_at = made_at - interval '31 days'")
    while retain(alone):
        pass
    (left,) = alone.rows("SELECT partition_key FROM invalidations")
    assert left["partition_key"] == "10-19"
    assert alone.fetch(first.task_id).json()["task"]["invalidation"] is None
    assert alone.complete(second).status_code == 200
    retain(alone, retention=timedelta(days=60))
    assert len(alone.rows("SELECT 1 FROM invalidations")) == 1
    while retain(alone):
        pass
    assert alone.rows("SELECT 1 FROM invalidations") == []
    assert alone.rows("SELECT 1 FROM invalidation_consumers") == []


def test_a_repeated_cursor_after_a_rewrite_is_accepted_after_retention(
    alone: Bench,
) -> None:
    attempt = alone.attempt()
    target = {name: attempt.output[name] for name in ("dataset_uuid", "dataset_version")}

    def rewrite(key: str) -> None:
        wrong = {**target, "kind": "row_range", "start": 5, "end": 9, "key": key}
        reply = alone.events(attempt, attempt.event(cursor=9), invalidations=[wrong])
        assert (reply.status_code, reply.json()["accepted"]) == (200, 1)

    rewrite("first")
    alone.live.drain()
    alone.rows("UPDATE invalidations SET made_at = made_at - interval '31 days'")
    while retain(alone):
        pass
    assert alone.rows("SELECT 1 FROM invalidations") == []
    rewrite("second")


def test_the_lineage_of_unreachable_generations_is_deleted(alone: Bench) -> None:
    dag = alone.dag()
    alone.tasks(2, dag=dag)
    commit_partitions(alone, dag, "work")
    commit_partitions(alone, dag, "after")
    assert lineage(alone) == 2
    for column, left in (("2", 2), ("3", 0)):  # a rollback can go back one step
        alone.dag(name=dag.name, column=column)
        alone.user.post(f"/v1/dags/{dag.name}/promote")  # the second deploy has nothing to build
        assert lineage(alone) == 2
        age(alone, 31)
        while retain(alone):
            pass
        assert lineage(alone) == left


def test_the_upstream_lineage_of_current_data_is_kept(alone: Bench) -> None:
    dag = alone.dag()
    alone.tasks(1, dag=dag)
    reader = Dag(f"{dag.name}_reader", "", {})
    text = f"""
name: {reader.name}
jobs:
  - name: read
    operator: sql
    inputs: [{{from: {{job: middle}}}}]
    outputs: [seen]
    config: {{sql: "SELECT 1"}}
  - name: middle
    operator: sql
    inputs: [{{from: {{dataset: {dag.published}}}}}]
    outputs: [half]
    config: {{sql: "SELECT 1"}}
publish: [{{name: {reader.name}_seen, from: {{job: read}}}}]
"""
    assert alone.user.post("/v1/dags", json={"text": text}).status_code == 200
    for place, job in ((dag, "work"), (reader, "middle"), (reader, "read")):
        commit_partitions(alone, place, job)
    # No dataset points to the middle generation, but current partitions were built from it.
    alone.rows(
        "UPDATE datasets SET dataset_version = NULL WHERE job_id IN"
        " (SELECT job_id FROM jobs WHERE name IN ('middle', 'work'))"
    )
    alone.rows("DELETE FROM rollouts")
    age(alone, 31)
    before = lineage(alone)
    while retain(alone):
        pass
    assert lineage(alone) == before
    up = alone.user.get(f"/v1/datasets/{reader.name}_seen/lineage/0-9").json()["up"]
    assert {link["job"] for link in up} == {"middle", "work"}
