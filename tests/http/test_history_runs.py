"""The history checker proves correct runs: rollouts, forced backfills, unrecorded tasks."""

from dataclasses import replace

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench
from support.lifecycle.recorder import Recorder


def test_rollouts_backfills_pauses_and_unrecorded_tasks_are_proven(alone: Bench) -> None:
    dag, other = RolloutDag(alone), RolloutDag(alone)
    dag.deploy_and_build()
    other.deploy_and_build()  # before the history begins
    alone.rows(
        """DELETE FROM events WHERE producer_task_id IN (
               SELECT task_id FROM tasks JOIN jobs USING (job_id) JOIN dags g USING (dag_id)
                WHERE g.name = %s)""",
        other.name,
    )  # as retention does
    recorder = Recorder()
    recorder.watch(alone.http, "w")

    # Blocks arrive in the middle of a rollout, before and after its swap.
    dag.deploy(column=2)
    dag.trigger(30, 39)
    dag.finish_all("work", "after")
    assert dag.swap()
    dag.trigger(40, 49)
    dag.finish_all("work", "after")

    # A job that a later deploy adds, and one that is paused.
    added = """
  - name: added
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [more]
    config: {sql: "SELECT 1 FROM out"}
"""
    dag.deploy(column=2, extra=added)
    paused = {"dag": dag.name, "job": "after"}
    assert alone.user.post("/v1/pauses", json=paused).status_code == 200
    dag.trigger(50, 59)
    dag.finish_all("work", "added")

    # A forced backfill builds partitions again, in chunks without events.
    body = {"dag": dag.name, "job": "work", "start": 0, "end": 29, "force": True}
    assert alone.user.post("/v1/backfills", json=body).status_code == 200
    feeder = replace(alone.live.service.feeder, window=200)
    alone.live.run(feeder.feed_once)
    dag.finish_all("work", "added")

    # A publication without an event of its own.
    other.trigger(30, 39)
    attempt = alone.claimed(other.queued("work")[0])
    published = alone.write_output(attempt)
    published = {k: v for k, v in published.items() if not k.startswith("range_")}
    assert alone.complete(attempt, datasets_published=[published]).status_code == 200
    alone.live.drain()

    recorder.dump(alone.live.dsns)
    verdict = recorder.verdict()
    assert verdict.proven, verdict.violations
    assert verdict.attempts > 10


def test_a_lost_event_is_refuted(alone: Bench) -> None:
    dag = RolloutDag(alone)
    recorder = Recorder()
    recorder.watch(alone.http, "w")
    dag.deploy_and_build()
    event = "SELECT event_id FROM events JOIN tasks ON task_id = producer_task_id"
    (row, *_) = alone.rows(f"{event} WHERE runtime <> 'dispatcher'")
    alone.rows("DELETE FROM events WHERE event_id = %s", row["event_id"])
    recorder.dump(alone.live.dsns)
    assert not recorder.verdict().proven
