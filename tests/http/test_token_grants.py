"""The token grants the inputs where they are stored, pinned at the claim, and nothing else."""

import hashlib
import json
from typing import Any
from uuid import UUID, uuid4

import jwt

from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.api.task.capability import Reads, parse_read_grants, parse_reads
from trace_etl.model.storage import hot_table

_TABLES = """
name: {name}
jobs:
  - name: follow
    activation: source
    source: {{kind: always_on}}
    operator: block_follower
    outputs: [hot_blocks]
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - name: totals
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [totals]
    update_strategy: append
    unique_key: [id]
    config: {{sql: "SELECT 1 AS id FROM ranges"}}
  - name: work
    operator: sql
    inputs:
      - {{from: {{job: request}}}}
      - {{from: {{job: follow}}}}
      - {{from: {{job: totals}}, where: {{id: [1, 2]}}}}
      - {{from: {{dataset: {name}_alerts}}}}
    outputs: [out]
    config: {{sql: "SELECT 1 AS one FROM totals"}}
  - name: alert
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [id]
    config: {{sql: "SELECT 1 AS id FROM ranges"}}
publish:
  - {{name: {name}_totals, from: {{job: totals}}, write_mode: append, storage: postgres}}
  - {{name: {name}_alerts, from: {{job: alert}}, write_mode: buffered, schema: [{{name: id, type: int}}]}}
"""


def claims_of(attempt: Attempt) -> dict[str, Any]:
    return jwt.decode(attempt.token, options={"verify_signature": False})


def reads_of(attempt: Attempt) -> Reads:
    return parse_reads(claims_of(attempt))


def add_partitions(bench: Bench, version: str, count: int) -> list[str]:
    """Insert partitions of one block each, as if other tasks had committed them. Returns their URLs."""
    (row,) = bench.rows(
        "SELECT dataset_uuid, generation_no FROM dataset_versions WHERE dataset_version = %s",
        version,
    )
    prefixes = [f"cold/datasets/{row['dataset_uuid']}/{version}/{uuid4()}/1/" for _ in range(count)]
    refs = [
        {"scheme": "file", "bucket": "trace", "prefix": prefix, "glob": "*.parquet"}
        for prefix in prefixes
    ]
    bench.rows(
        "INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start,"
        " range_end, storage_ref, row_count, byte_count, columns, task_id, attempt, read_snapshot)"
        " SELECT %s, %s, n - 1 || '-' || n - 1, n - 1, n - 1, ref::jsonb, 1, 1, '[]',"
        " gen_random_uuid(), 1, pg_current_snapshot()"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS made (ref, n)",
        version,
        row["generation_no"],
        [json.dumps(ref) for ref in refs],
    )
    return [f"s3://trace/{prefix}" for prefix in prefixes]


def test_tables_are_granted_by_name_and_not_as_prefixes(shared: Bench) -> None:
    name = f"t_{uuid4().hex[:12]}"
    reply = shared.user.post("/v1/dags", json={"text": _TABLES.format(name=name)})
    assert reply.status_code == 200, reply.text
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    assert shared.user.post("/v1/triggers", json=body).status_code == 200
    shared.live.drain()
    query = {"dag": name, "job": "work", "status": "Queued"}
    (task,) = shared.user.get("/v1/tasks", params=query).json()["items"]
    attempt = shared.claimed(task["task_id"])
    hot, totals, alerts = reads_of(attempt).datasets  # the ranges bring no rows
    for grant in (hot, totals, alerts):
        assert grant.table == hot_table(grant.dataset_uuid, grant.dataset_version)
    assert [g.name for g in (hot, totals, alerts)] == [None, f"{name}_totals", f"{name}_alerts"]
    assert [g.input for g in (hot, totals, alerts)] == ["hot_blocks", "totals", f"{name}_alerts"]
    assert [g.where for g in (hot, totals, alerts)] == [None, {"id": [1, 2]}, None]
    assert claims_of(attempt)["s3"]["read_prefixes"] == []
    totals_task = shared.user.get("/v1/tasks", params={**query, "job": "totals"}).json()["items"][0]
    claims = claims_of(shared.claimed(totals_task["task_id"]))
    assert claims["s3"]["write_prefixes"] == []
    assert claims["datasets"][-1]["storage_ref"] == {"scheme": "postgres", "table": totals.table}


def test_only_the_partitions_of_the_scope_are_granted(shared: Bench) -> None:
    dag = shared.dag()
    publications: list[dict[str, Any]] = []
    for task_id in shared.tasks(2, dag=dag):
        producer = shared.claimed(task_id)
        publications.append(shared.write_output(producer))
        assert shared.complete(producer, datasets_published=publications[-1:]).status_code == 200
    shared.live.drain()
    for task_id, publication in zip(shared.waiting(dag, "after"), publications, strict=True):
        attempt = shared.claimed(task_id)
        (read,) = reads_of(attempt).datasets
        ref = publication["storage_ref"]
        assert read.prefixes == (f"s3://{ref['bucket']}/{ref['prefix']}",)
        assert (read.input, read.name) == ("out", dag.published)
        (pinned,) = attempt.claimed["task"]["inputs"][0]["partitions"]
        assert pinned["storage_ref"] == ref


def test_scratch_and_export_prefixes_belong_to_the_attempt(shared: Bench) -> None:
    attempt = shared.attempt()
    claims, task = claims_of(attempt), attempt.claimed["task"]
    for kind, ref in (("scratch", task["scratch_ref"]), ("exports", task["export_ref"])):
        assert ref["prefix"] == f"{kind}/{claims['org_id']}/{attempt.task_id}/1/"
    assert claims["s3"]["scratch_prefix"] == f"s3://trace/{task['scratch_ref']['prefix']}"
    assert claims["s3"]["export_prefix"] == f"s3://trace/{task['export_ref']['prefix']}"


def test_thousands_of_partitions_are_recorded_and_named_by_digest(shared: Bench) -> None:
    dag = shared.dag()
    urls = add_partitions(shared, dag.datasets["work"]["dataset_version"], 2000)
    (job,) = shared.rows(
        "SELECT j.* FROM jobs j JOIN dags g USING (dag_id) WHERE g.name = %s AND j.name = 'after'",
        dag.name,
    )
    (task,) = shared.rows(
        "INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts,"
        " timeout_seconds, lease_seconds) VALUES (%s, %s, %s, 'ecs_python', 'whole', 3, 60, 60)"
        " RETURNING task_id",
        job["org_id"],
        job["job_id"],
        job["revision_id"],
    )
    attempt = shared.claimed(str(task["task_id"]))
    assert len(attempt.claimed["task"]["inputs"][0]["partitions"]) == 2000
    assert len(attempt.token) < 8192
    reads = reads_of(attempt)
    assert reads.datasets == () and claims_of(attempt)["s3"]["read_prefixes"] == []
    (recorded,) = shared.rows("SELECT document FROM read_grants WHERE sha256 = %s", reads.sha256)
    assert hashlib.sha256(recorded["document"].encode()).hexdigest() == reads.sha256
    document = json.loads(recorded["document"])
    (read,) = parse_read_grants(document["datasets"], document["read_prefixes"])
    assert sorted(read.prefixes) == sorted(urls)
    assert read.dataset_version == UUID(dag.datasets["work"]["dataset_version"])
    assert shared.heartbeat(attempt).status_code == 200
