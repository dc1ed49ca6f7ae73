"""What starts a job, apart from what it reads: ticks, payloads, keys, and jobs over whole datasets."""

import json
from typing import Any

import jwt
import pytest

from support.dags.clock import Clock
from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.http.clients.dispatcher_client import _CLAIM_REPLY
from trace_etl.state.db.pool import transaction
from trace_etl.state.routing.reconcile import compare_partitions


def reconcile(bench: Bench) -> None:
    """Compare all partitions that are committed now with the tasks of their consumers."""
    (row,) = bench.rows("SELECT pg_current_xact_id()::text AS xid")

    async def compare() -> None:
        async with transaction(bench.live.service.reconciler.pool) as conn:
            while (await compare_partitions(conn, horizon=row["xid"])).partitions:
                pass

    bench.live.run(compare)


@pytest.fixture
def clock(shared: Bench) -> Clock:
    return Clock(shared)


# --- ticks ----------------------------------------------------------------------------------------


def test_a_tick_starts_one_task_over_the_whole_dataset(clock: Clock) -> None:
    clock.add_rows(0)
    clock.add_rows(10)
    assert clock.tasks("summary") == []  # a change of the dataset does not start the job
    assert clock.tick(0)["created"]
    assert not clock.tick(0)["created"]  # the same tick from a second scheduler
    task = clock.claim("summary").claimed["task"]
    assert task["scope"]["partition_key"] == "2026-03-01T12:00:00Z"
    assert (task["scope"]["start"], task["scope"]["end"]) == (None, None)
    assert task["parameters"] == {"scheduled_time": "2026-03-01T12:00:00Z"}
    (rows,) = task["inputs"]  # the tick brings no rows
    assert [p["partition_key"] for p in rows["partitions"]] == ["0-9", "10-19"]
    clock.tick(1)
    assert len(clock.tasks("summary")) == 2


def test_a_rewrite_of_the_dataset_does_not_run_past_ticks_again(
    clock: Clock, shared: Bench
) -> None:
    clock.add_rows(0)
    clock.tick(0)
    clock.run("summary")
    (done,) = clock.tasks("rows")
    shared.rows(
        "UPDATE tasks SET status = 'Queued', lease_token = NULL, attempt = attempt + 1,"
        " started_at = NULL, finished_at = NULL WHERE task_id = %s",
        done["task_id"],
    )
    clock.run("rows")
    assert [t["status"] for t in clock.tasks("summary")] == ["Completed"]


def test_a_changed_consumer_runs_for_the_last_tick_only(clock: Clock) -> None:
    clock.add_rows(0)
    for minute in range(3):
        clock.tick(minute)
        clock.run("summary")
    clock.deploy("changed")
    assert clock.claim("summary").scope["partition_key"] == "2026-03-01T12:02:00Z"


# --- whole datasets -------------------------------------------------------------------------------


def test_changes_share_a_queued_refresh_and_one_during_a_run_starts_another(clock: Clock) -> None:
    clock.add_rows(0)
    clock.add_rows(10)
    attempt = clock.claim("whole")  # one task for two changes
    assert attempt.scope["partition_key"] == "all"
    assert len(attempt.claimed["task"]["inputs"][0]["partitions"]) == 2
    clock.add_rows(20)
    clock.complete(attempt)
    again = clock.run("whole")
    assert len(again.claimed["task"]["inputs"][0]["partitions"]) == 3
    assert clock.tasks("whole", status="Queued") == []


def test_a_backfill_of_a_job_over_a_whole_dataset_is_refused(clock: Clock, shared: Bench) -> None:
    body = {"dag": clock.name, "job": "whole", "start": 0, "end": 9}
    reply = shared.user.post("/v1/backfills/preview", json=body)
    assert reply.status_code == 409 and "backfill the jobs that it reads" in reply.text


def test_a_claim_with_an_older_snapshot_is_repeated_at_its_commit(
    clock: Clock, shared: Bench
) -> None:
    """A claim may wait for the lock of a request, and then use the snapshot that it took before."""
    clock.add_rows(0)
    attempt = clock.claim("whole")
    (request,) = shared.rows(
        "UPDATE refresh_requests SET requested_xid = pg_current_xact_id()"
        " WHERE job_id = (SELECT job_id FROM tasks WHERE task_id = %s) RETURNING partition_key",
        attempt.task_id,
    )
    assert request["partition_key"] == "all"
    clock.complete(attempt)
    clock.run("whole")
    assert clock.tasks("whole", status="Queued") == []


def test_the_reconciler_does_not_repeat_what_a_refresh_has_seen(
    clock: Clock, shared: Bench
) -> None:
    clock.add_rows(0)
    clock.run("whole")
    reconcile(shared)
    assert clock.tasks("whole", status="Queued") == []
    shared.rows(
        "UPDATE partitions p SET commit_xid = pg_current_xact_id() FROM tasks t"
        " JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)"
        " WHERE t.task_id = p.task_id AND g.name = %s AND j.name = 'rows'",
        clock.name,
    )
    reconcile(shared)  # as if the event was lost
    clock.run("whole")


# --- several inputs from one producer -------------------------------------------------------------


def test_a_job_with_two_inputs_from_one_producer_runs_once_per_partition(shared: Bench) -> None:
    clock = Clock(
        shared,
        """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: ingest
    operator: cryo_ingest
    inputs: [{{from: {{job: request}}}}]
    outputs: [blocks, logs]
  - name: stamp
    operator: enrich
    inputs: [{{from: {{job: ingest, output: logs}}}}, {{from: {{job: ingest, output: blocks}}}}]
    outputs: [stamped]
    config: {{on: {{block_number: block_number}}}}
""",
    )
    clock.trigger("request", start=0, end=9)
    attempt = clock.claim("ingest")
    outputs: list[dict[str, Any]] = []
    for output in attempt.claimed["task"]["outputs"]:
        one = Attempt({**attempt.claimed, "task": {**attempt.claimed["task"], "outputs": [output]}})
        outputs.append(shared.write_output(one))
    assert shared.complete(attempt, datasets_published=outputs).status_code == 200
    shared.live.drain()
    task = clock.run("stamp").claimed["task"]
    assert [len(i["partitions"]) for i in task["inputs"]] == [1, 1]
    assert len(clock.tasks("stamp")) == 1
    reconcile(shared)
    assert len(clock.tasks("stamp")) == 1


# --- manual triggers ------------------------------------------------------------------------------


def test_a_manual_source_takes_a_key_a_cursor_or_a_payload(clock: Clock) -> None:
    clock.trigger("request", partition_key="eu", payload={"limit": 5})
    task = clock.run("rows").claimed["task"]
    assert task["scope"]["partition_key"] == "eu"
    assert task["parameters"] == {"payload": {"limit": 5}}
    assert not clock.trigger("request", partition_key="eu", payload={"limit": 5})["created"]
    clock.trigger("request", status=409, partition_key="eu", payload={"limit": 6})
    clock.trigger("request", cursor=7)
    assert clock.run("rows").claimed["task"]["scope"]["cursor"] == 7
    for _ in range(2):  # each payload is an event of its own
        assert clock.trigger("request", payload=[1])["created"]
        assert clock.run("rows").claimed["task"]["parameters"] == {"payload": [1]}
    clock.trigger("request", status=422)
    clock.trigger("request", status=422, cursor=1, partition_key="a")
    clock.trigger("request", status=409, scheduled_time="2026-03-01T12:00:00Z")


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("NaN", "not a JSON number"),
        ('{"a": [1e400]}', "not a JSON number"),
        (f"{2**64}", "more than 64 bits"),
        (f"[{-(2**63) - 1}]", "more than 64 bits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ('{"a": {"\\u0000": 1}}', "NUL"),
        ("[" * 65 + "1" + "]" * 65, "nested more than 64 levels"),
        ("[" * 900 + "1" + "]" * 900, "nested more than 64 levels"),
    ],
    ids=lambda text: text[:20],
)
def test_a_payload_that_cannot_be_stored_or_read_is_refused(
    clock: Clock, shared: Bench, payload: str, problem: str
) -> None:
    body = f'{{"dag": "{clock.name}", "job": "request", "payload": {payload}}}'
    headers = {"Content-Type": "application/json"}
    reply = shared.user.post("/v1/triggers", content=body, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
    assert "`payload`" in reply.json()["detail"] and problem in reply.json()["detail"]


def test_the_largest_payload_reaches_its_task(clock: Clock) -> None:
    payload: Any = [2**64 - 1, -(2**63), 1e-300, "\U0001f4a5"]
    for _ in range(63):
        payload = [payload]
    clock.trigger("request", payload=payload)
    claimed = clock.run("rows").claimed
    assert claimed["task"]["parameters"] == {"payload": payload}
    _CLAIM_REPLY.validate_json(json.dumps(claimed))  # as the worker does, which limits the nesting


# --- what a trigger caused ------------------------------------------------------------------------


def test_progress_counts_only_what_the_trigger_caused(clock: Clock, shared: Bench) -> None:
    clock.tick(0)  # other work of the same DAG, which never ends
    first = clock.trigger("request", start=0, end=9)
    assert clock.progress(first)["queued"] == 1
    clock.run("rows")
    assert (clock.progress(first)["queued"], clock.progress(first)["completed"]) == (1, 1)
    clock.run("whole")
    done = clock.progress(first)
    assert [done[n] for n in ("queued", "running", "completed", "unrouted")] == [0, 0, 2, 0]
    second = clock.trigger("request", start=10, end=19)
    attempt = clock.claim("rows")
    shared.complete(attempt, "Failed", error_code="bad_sql", error_message="no", retryable=False)
    failed = clock.progress(second)
    assert [f["error_code"] for f in failed["failures"]] == ["bad_sql"]
    assert clock.progress(first)["failed"] == 0
    repeated = clock.trigger("request", start=10, end=19)
    assert repeated["retried_task_ids"] == [attempt.task_id]
    assert clock.progress(repeated)["retrying"] == 1


def test_progress_waits_neither_for_paused_sources_nor_for_sources_that_never_end(
    clock: Clock, shared: Bench
) -> None:
    pause = {"dag": clock.name, "job": "request", "reason": "test"}
    assert shared.user.post("/v1/pauses", json=pause).status_code == 200
    held = clock.progress(clock.trigger("request", start=0, end=9))
    assert (held["unrouted"], held["deferred"], held["queued"]) == (0, 1, 0)

    resume = {"dag": clock.name, "job": "request"}
    assert shared.user.post("/v1/pauses/resume", json=resume).status_code == 200
    shared.live.drain()
    (task,) = clock.tasks("rows")
    work = {"event_ids": [], "retried_task_ids": [task["task_id"]]}
    assert clock.progress(work)["queued"] == 1
    endless = "UPDATE tasks SET dedupe_key = 'always_on:' || dedupe_key WHERE task_id = %s"
    shared.rows(endless, task["task_id"])
    assert clock.progress(work)["queued"] == 0


# --- pauses ---------------------------------------------------------------------------------------


def test_a_deploy_does_not_let_the_events_of_a_paused_source_through(
    clock: Clock, shared: Bench
) -> None:
    shared.user.post("/v1/pauses", json={"dag": clock.name, "job": "request"})
    assert clock.trigger("request", start=0, end=9)["deferred_by"]
    clock.text = clock.text.replace("SELECT 1 AS n", "SELECT 2 AS n")
    clock.deploy()
    assert clock.tasks("rows") == []
    shared.user.post("/v1/pauses/resume", json={"dag": clock.name, "job": "request"})
    shared.live.drain()
    assert [t["partition_key"] for t in clock.tasks("rows")] == ["0-9"]


def test_the_pause_of_a_removed_job_can_be_ended(clock: Clock, shared: Bench) -> None:
    shared.user.post("/v1/pauses", json={"dag": clock.name, "job": "whole"})
    clock.text = clock.text[: clock.text.index("  - name: whole")]
    clock.deploy()
    resumed = shared.user.post("/v1/pauses/resume", json={"dag": clock.name, "job": "whole"})
    assert (resumed.status_code, resumed.json()["jobs"]) == (200, ["whole"])
    listed = shared.user.get("/v1/pauses", params={"dag": clock.name}).json()["items"]
    assert listed == []


def test_a_refresh_may_read_the_output_that_it_replaces(clock: Clock) -> None:
    clock.add_rows(0)
    first = clock.run("whole")
    assert first.claimed["task"]["previous"] is None
    clock.add_rows(10)
    second = clock.claim("whole")
    replaced = first.output["storage_ref"]
    assert second.claimed["task"]["previous"] == {
        "partition_key": "all",
        "start": None,
        "end": None,
        "storage_ref": replaced,
    }
    claims = jwt.decode(second.token, options={"verify_signature": False})
    granted = json.dumps(claims)
    assert f"s3://{replaced['bucket']}/{replaced['prefix']}" in granted
    assert [item["name"] for item in second.claimed["task"]["inputs"]] == ["rows"]
    clock.complete(second)
    clock.add_rows(20)
    assert (
        clock.claim("whole").claimed["task"]["previous"]["storage_ref"]
        == second.output["storage_ref"]
    )
