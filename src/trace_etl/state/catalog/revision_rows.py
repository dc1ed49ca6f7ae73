"""Write the revisions of jobs, with their inputs and outputs."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import find_buffered_outputs
from trace_etl.model.dag import Dag, Job
from trace_etl.policy.deploy.generations import definition_hash, job_definition
from trace_etl.state.catalog.generations import OutputName
from trace_etl.state.db.pool import Conn

_INSERT_REVISIONS = """
INSERT INTO job_revisions (
    job_id, definition_hash, generation_hash, definition, activation, runtime, operator, config,
    source, execution_strategy, update_strategy, unique_key, max_attempts, timeout_seconds,
    heartbeat_timeout_seconds, priority, max_concurrency, max_queue_depth, max_queue_age,
    bootstrap, secrets, udf, retry, partition_by, checks)
SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (
    job_id uuid, definition_hash text, generation_hash text, definition jsonb, activation text,
    runtime text, operator text, config jsonb, source jsonb, execution_strategy text,
    update_strategy text, unique_key text[], max_attempts integer, timeout_seconds integer,
    heartbeat_timeout_seconds integer, priority text, max_concurrency integer,
    max_queue_depth integer, max_queue_age integer, bootstrap jsonb, secrets text[], udf jsonb,
    retry jsonb, partition_by text, checks jsonb)
ON CONFLICT ON CONSTRAINT job_revisions_definition DO NOTHING
RETURNING job_id
"""
_FIND_REVISIONS = """
SELECT r.job_id, r.revision_id
  FROM unnest(%(job_ids)s::uuid[], %(hashes)s::text[]) AS w (job_id, definition_hash)
  JOIN job_revisions r USING (job_id, definition_hash)
"""


async def insert_revisions(
    conn: Conn, dag: Dag, jobs: Mapping[str, UUID], generations: Mapping[str, str]
) -> tuple[dict[str, UUID], set[str]]:
    """Insert the missing revisions. Returns all of them by job name, and the names of new ones."""
    # The generation is part of the identity: if only the upstream of a job changed, the job still
    # writes another dataset version.
    hashes = {
        job.name: f"{definition_hash(job)}:{generations[job.name]}{_identify_columns(dag, job)}"
        for job in dag.jobs
    }
    rows = [
        {
            **_make_revision_columns(job),
            "job_id": str(jobs[job.name]),
            "definition_hash": hashes[job.name],
            "generation_hash": generations[job.name],
        }
        for job in dag.jobs
    ]
    added = await (await conn.execute(_INSERT_REVISIONS, {"rows": Jsonb(rows)})).fetchall()
    names = {job_id: name for name, job_id in jobs.items()}
    keys = {"job_ids": list(names), "hashes": [hashes[name] for name in names.values()]}
    existing = await (await conn.execute(_FIND_REVISIONS, keys)).fetchall()
    return {names[row[0]]: row[1] for row in existing}, {names[row[0]] for row in added}


def _identify_columns(dag: Dag, job: Job) -> str:
    """Return what identifies the columns that were added to the buffered outputs of a job."""
    added = [
        f":{dataset.declared_generation}"
        for (name, _), dataset in sorted(find_buffered_outputs(dag).items())
        if name == job.name and dataset.generation != dataset.declared_generation
    ]
    return "".join(added)


def _make_revision_columns(job: Job) -> dict[str, Any]:
    definition = job_definition(job)
    columns = {k: v for k, v in definition.items() if k not in ("name", "inputs", "outputs")}
    return {**columns, "definition": definition}


_INSERT_INPUTS = """
INSERT INTO job_inputs (revision_id, input_index, name, dataset_uuid, dataset_version, where_map,
                        time_column, reads, trigger_index)
SELECT r.revision_id, r.input_index, r.name, r.dataset_uuid, r.dataset_version, r.where_map,
       r.time_column, r.reads,
       CASE WHEN r.starts THEN min(r.input_index) FILTER (WHERE r.starts) OVER (
           PARTITION BY r.revision_id, coalesce(d.job_id, d.dataset_uuid)) END
  FROM jsonb_to_recordset(%(rows)s) AS r (
       revision_id uuid, input_index integer, name text, dataset_uuid uuid, dataset_version uuid,
       where_map jsonb, time_column text, reads boolean, starts boolean)
  JOIN datasets d USING (dataset_uuid)
"""


async def insert_inputs(
    conn: Conn,
    new: list[Job],
    revisions: Mapping[str, UUID],
    datasets: Mapping[OutputName, UUID],
    versions: Mapping[UUID, UUID],
    upstream: Mapping[str, UUID],
) -> None:
    """Insert the inputs of new revisions. `upstream` has other DAGs' datasets by name."""
    rows: list[dict[str, Any]] = []
    for job in new:
        for n, item in enumerate(job.inputs):
            is_inside_dag = item.job is not None and item.output is not None
            dataset = (
                datasets[item.job or "", item.output or ""]
                if is_inside_dag
                else upstream[item.dataset or ""]
            )
            rows.append(
                {
                    "revision_id": str(revisions[job.name]),
                    "input_index": n,
                    "name": item.name,
                    "dataset_uuid": str(dataset),
                    "dataset_version": str(versions[dataset]) if is_inside_dag else None,
                    "where_map": item.where or None,
                    "time_column": item.time,
                    "reads": item.reads,
                    "starts": item.starts,
                }
            )
    await conn.execute(_INSERT_INPUTS, {"rows": Jsonb(rows)})


_INSERT_OUTPUTS = """
INSERT INTO job_outputs (revision_id, output_index, name, dataset_uuid, dataset_version)
SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (
    revision_id uuid, output_index integer, name text, dataset_uuid uuid, dataset_version uuid)
"""


async def insert_outputs(
    conn: Conn,
    new: list[Job],
    revisions: Mapping[str, UUID],
    datasets: Mapping[OutputName, UUID],
    versions: Mapping[UUID, UUID],
) -> None:
    rows: list[dict[str, Any]] = []
    for job in new:
        for n, output in enumerate(job.outputs):
            dataset = datasets[job.name, output]
            rows.append(
                {
                    "revision_id": str(revisions[job.name]),
                    "output_index": n,
                    "name": output,
                    "dataset_uuid": str(dataset),
                    "dataset_version": str(versions[dataset]),
                }
            )
    await conn.execute(_INSERT_OUTPUTS, {"rows": Jsonb(rows)})
