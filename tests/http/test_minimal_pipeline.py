"""The minimal pipeline: deploy, trigger, route, claim, complete, and the next job."""

from datetime import timedelta
from itertools import pairwise

from support import queue_tables
from support.dags.dags import QUICKSTART
from support.lifecycle.lifecycle import bench, write_parquet_output
from support.services.dispatcher import Live
from support.services.postgres import sql
from trace_etl.queues.pgqueue import PgQueue


def deploy(live: Live, text: str = QUICKSTART) -> dict:
    with live.user() as http:
        reply = http.post("/v1/dags", json={"text": text})
        assert reply.status_code == 200, reply.text
        return reply.json()


def trigger(live: Live, start: int, end: int) -> dict:
    with live.user() as http:
        body = {"dag": "quickstart", "job": "request", "start": start, "end": end}
        reply = http.post("/v1/triggers", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()


def queued(live: Live, job: str) -> list[str]:
    with live.user() as http:
        query = {"job": job, "status": "Queued"}
        items = http.get("/v1/tasks", params=query).json()["items"]
        # Always in this order: of two attempts for one scope, the one that read later wins.
        return [task["task_id"] for task in sorted(items, key=lambda t: t["partition_key"])]


def claim(live: Live, task_id: str, worker: str = "w1") -> dict:
    with live.internal() as http:
        reply = http.post(
            "/internal/task-claim",
            json={"task_id": task_id, "worker_id": worker},
            headers={"X-Trace-Worker-Token": live.secrets.worker_token},
        )
        assert reply.status_code == 200, reply.text
        return reply.json()


def write_outputs(live: Live, claimed: dict, rows: int = 3) -> list[dict]:
    """Write a file and its marker like a worker. Returns the publications to send."""
    published = []
    scope = claimed["task"]["scope"]
    for output in claimed["task"]["outputs"]:
        ref = output["storage_ref"]
        place = live.objects / ref["bucket"] / ref["prefix"]
        name = f"{output['name']}_{scope['start']}_{scope['end']}.parquet"
        write_parquet_output(place, name, rows)
        published.append(
            {
                "dataset_uuid": output["dataset_uuid"],
                "dataset_version": output["dataset_version"],
                "storage_ref": ref,
                "range_start": scope["start"],
                "range_end": scope["end"],
            }
        )
    return published


def complete(live: Live, claimed: dict, **fields: object):
    task = claimed["task"]
    body = {
        "task_id": task["task_id"],
        "attempt": claimed["attempt"],
        "lease_token": claimed["lease_token"],
        "status": "Completed",
        **fields,
    }
    headers = {"X-Trace-Task-Capability": claimed["capability_token"]}
    with live.internal() as http:
        return http.post("/v1/task/complete", json=body, headers=headers)


def events_of(claimed: dict) -> list[dict]:
    scope = claimed["task"]["scope"]
    return [
        {
            "dataset_uuid": output["dataset_uuid"],
            "dataset_version": output["dataset_version"],
            "partition_key": scope["partition_key"],
            "start": scope["start"],
            "end": scope["end"],
        }
        for output in claimed["task"]["outputs"]
    ]


def test_a_triggered_range_is_split_ingested_committed_and_routed(dispatcher: Live) -> None:
    deploy(dispatcher)
    trigger(dispatcher, 0, 299)
    dispatcher.drain()

    ingests = queued(dispatcher, "ingest")
    assert len(ingests) == 3
    messages = sql(dispatcher.dsns.queue, queue_tables.MESSAGES)
    assert sorted(m[1]["task_id"] for m in messages) == sorted(ingests)
    assert {m[0] for m in messages} == {"ecs_python"}

    claimed = claim(dispatcher, ingests[0])
    assert claimed["status"] == "Claimed"
    assert claimed["task"]["operator"] == "cryo_ingest"
    assert [o["name"] for o in claimed["task"]["outputs"]] == ["blocks", "transactions", "logs"]
    published = write_outputs(dispatcher, claimed)
    reply = complete(dispatcher, claimed, datasets_published=published, events=events_of(claimed))
    assert reply.status_code == 200, reply.text
    dispatcher.drain()

    (receivers,) = queued(dispatcher, "receivers")
    downstream = claim(dispatcher, receivers)
    (source,) = downstream["task"]["inputs"]
    assert source["name"] == "logs"
    assert [p["storage_ref"] for p in source["partitions"]] == [published[2]["storage_ref"]]
    assert downstream["task"]["scope"]["partition_key"] == claimed["task"]["scope"]["partition_key"]


def test_deploying_the_same_text_twice_changes_nothing(dispatcher: Live) -> None:
    first, second = deploy(dispatcher), deploy(dispatcher)
    assert first["changed"] and not second["changed"]
    assert first["dag_version"] == second["dag_version"]
    assert first["datasets"] == second["datasets"]


def test_triggering_the_same_range_twice_creates_no_new_tasks(dispatcher: Live) -> None:
    deploy(dispatcher)
    first, second = trigger(dispatcher, 0, 299), trigger(dispatcher, 0, 299)
    dispatcher.drain()
    assert (first["created"], second["created"]) == (True, False)
    assert first["event_id"] == second["event_id"]
    assert len(queued(dispatcher, "ingest")) == 3


def test_a_changed_config_gives_new_versions_to_the_job_and_all_downstream_jobs(
    dispatcher: Live,
) -> None:
    before = {d["output"]: d for d in deploy(dispatcher)["datasets"] if d["job"] != "request"}
    text = QUICKSTART.replace("count(*) AS n", "count(*) AS transfers")
    after = {d["output"]: d for d in deploy(dispatcher, text)["datasets"] if d["job"] != "request"}
    changed = {
        name for name in before if before[name]["dataset_version"] != after[name]["dataset_version"]
    }
    assert changed == {"receivers"}
    assert all(before[n]["dataset_uuid"] == after[n]["dataset_uuid"] for n in before)


def test_a_range_that_partly_overlaps_a_committed_partition_is_refused(dispatcher: Live) -> None:
    deploy(dispatcher)
    trigger(dispatcher, 0, 199)
    dispatcher.drain()
    # Triggers do not create such a task; an event of another service may.
    sql(
        dispatcher.dsns.state,
        "UPDATE tasks SET partition_key = '50-99', range_start = 50, range_end = 99"
        " WHERE partition_key = '100-199' AND status = 'Queued'",
    )
    by_key = {c["task"]["scope"]["partition_key"]: c for c in _claim_all(dispatcher, "ingest")}
    assert sorted(by_key) == ["0-99", "50-99"]
    whole_range, partial_range = by_key["0-99"], by_key["50-99"]
    published = write_outputs(dispatcher, whole_range)
    assert complete(dispatcher, whole_range, datasets_published=published).status_code == 200
    reply = complete(
        dispatcher, partial_range, datasets_published=write_outputs(dispatcher, partial_range)
    )
    assert reply.status_code == 409
    assert reply.json()["code"] == "partition_overlap"
    rows = sql(dispatcher.dsns.state, "SELECT partition_key FROM partitions")
    assert {r[0] for r in rows} == {"0-99"}
    state = sql(
        dispatcher.dsns.state,
        "SELECT status FROM tasks WHERE task_id = %s",
        (partial_range["task"]["task_id"],),
    )
    assert state == [("Running",)]


def _claim_all(live: Live, job: str) -> list[dict]:
    return [claim(live, task_id) for task_id in queued(live, job)]


FLOW = """
name: flow
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: split, operator: range_splitter, inputs: [{from: {job: request}}], outputs: [ranges],
     config: {size: 10}}
  - {name: ingest, operator: sql, inputs: [{from: {job: split}}], outputs: [a],
     config: {sql: "SELECT 1 FROM ranges"}}
  - {name: middle, operator: sql, inputs: [{from: {job: ingest}}], outputs: [b],
     config: {sql: "SELECT 1 FROM a"}}
  - {name: last, operator: sql, inputs: [{from: {job: middle}}], outputs: [c],
     config: {sql: "SELECT 1 FROM b"}}
"""
RANGES = 40
JOBS = ("ingest", "middle", "last")


def test_the_oldest_data_passes_through_the_whole_dag_first_and_ingest_goes_on(
    dispatcher: Live,
) -> None:
    """One worker runs what the queue delivers; the first attempt of range 5 fails."""
    order: list[tuple[str, int]] = []
    consumer = PgQueue(dispatcher.cfg.queue_dsn).consumer(["ecs_python"], "w1")
    with bench(dispatcher) as made:
        assert made.user.post("/v1/dags", json={"text": FLOW}).status_code == 200
        body = {"dag": "flow", "job": "request", "start": 0, "end": RANGES * 10 - 1}
        assert made.user.post("/v1/triggers", json=body).status_code == 200
        dispatcher.drain()
        while messages := consumer.receive(limit=1, visibility=timedelta(hours=1)):
            attempt = made.claimed(messages[0].body["task_id"])
            job, start = attempt.claimed["task"]["job"]["name"], attempt.scope["start"] // 10
            order.append((job, start))
            if (job, start, attempt.number) == ("ingest", 5, 1):
                failed = made.complete(attempt, "Failed", error_code="x", retryable=True)
                assert failed.status_code == 200
                made.let_retry_fall_due(attempt.task_id)
                assert made.start_retries() == 1
            else:
                published = made.write_output(attempt)
                done = made.complete(
                    attempt, datasets_published=[published], events=[attempt.event()]
                )
                assert done.status_code == 200, done.text
            consumer.delete(messages[0])
            dispatcher.drain()
    consumer.close()

    assert len(order) == 3 * RANGES + 1
    again = len(order) - 1 - order[::-1].index(("ingest", 5))
    assert order[again - 6 : again].count(("ingest", 5)) == 1, "the second attempt follows soon"
    del order[again]
    starts = {job: [start for name, start in order if name == job] for job in JOBS}
    assert starts["ingest"] == [*range(RANGES)]
    for job in JOBS[1:]:
        assert sorted(starts[job]) == [*range(RANGES)]
        # The range that was late is late here; the others keep their order.
        assert sorted(set(starts[job]) - {5}) == [start for start in starts[job] if start != 5]
        assert starts[job].index(5) < 9
    for place in range(len(order)):
        counts = [[name for name, _ in order[: place + 1]].count(name) for name in JOBS]
        if counts[0] < RANGES:  # while blocks are read
            assert counts[0] - counts[1] <= 3 and counts[1] - counts[2] <= 3, order[: place + 1]
    ingests = [place for place, (job, _) in enumerate(order) if job == "ingest"]
    assert max(b - a for a, b in pairwise(ingests)) <= 4, "ingest takes its turns"
