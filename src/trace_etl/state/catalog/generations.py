"""Write the datasets that a DAG's jobs produce, and their generations."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import BufferedDataset, find_buffered_outputs
from trace_etl.model.dag import Dag
from trace_etl.state.catalog import buffer_columns
from trace_etl.state.db.pool import Conn

OutputName = tuple[str, str]
"""The name of a job and the name of one of its outputs."""

_INSERT_DATASETS = """
INSERT INTO datasets (org_id, job_id, output_name)
SELECT %(org_id)s, job_id, output_name
  FROM unnest(%(job_ids)s::uuid[], %(outputs)s::text[]) AS w (job_id, output_name)
ON CONFLICT ON CONSTRAINT datasets_output_per_job DO NOTHING
"""
_FIND_DATASETS = """
SELECT job_id, output_name, dataset_uuid FROM datasets WHERE job_id = ANY(%(job_ids)s)
"""


async def insert_datasets(
    conn: Conn, org_id: UUID, dag: Dag, jobs: Mapping[str, UUID]
) -> dict[OutputName, UUID]:
    """Insert the missing datasets of a DAG's outputs. Returns all ids by output."""
    shared = await _insert_buffered_datasets(conn, org_id, dag)
    outputs = [(job.name, output) for job in dag.jobs for output in job.outputs]
    unshared = [output for output in outputs if output not in shared]
    values = {
        "org_id": org_id,
        "job_ids": [jobs[job] for job, _ in unshared],
        "outputs": [output for _, output in unshared],
    }
    await conn.execute(_INSERT_DATASETS, values)
    rows = await (await conn.execute(_FIND_DATASETS, values)).fetchall()
    names = {job_id: name for name, job_id in jobs.items()}
    return {**{(names[row[0]], row[1]): row[2] for row in rows}, **shared}


# The update locks the row until the deploy commits, in the order of names. So two deploys that
# declare the same name differently run one after the other, and the second one is refused.
_INSERT_BUFFERED = """
INSERT INTO datasets (org_id, buffer_name, output_name)
SELECT %(org_id)s, n, n FROM unnest(%(names)s::text[]) n ORDER BY n
ON CONFLICT ON CONSTRAINT datasets_buffer_per_org DO UPDATE SET buffer_name = EXCLUDED.buffer_name
RETURNING buffer_name, dataset_uuid
"""


async def _insert_buffered_datasets(conn: Conn, org_id: UUID, dag: Dag) -> dict[OutputName, UUID]:
    """Insert the buffered datasets. All jobs that publish the same buffered name share one dataset."""
    names = {output: buffer.name for output, buffer in find_buffered_outputs(dag).items()}
    if not names:
        return {}
    values = {"org_id": org_id, "names": sorted(set(names.values()))}
    rows = await (await conn.execute(_INSERT_BUFFERED, values)).fetchall()
    known = {row[0]: row[1] for row in rows}
    return {output: known[name] for output, name in names.items()}


_INSERT_GENERATIONS = """
INSERT INTO dataset_versions (dataset_uuid, generation_hash, columns, unique_key)
SELECT DISTINCT ON (dataset_uuid, generation_hash) *
  FROM jsonb_to_recordset(%(rows)s) AS r (
       dataset_uuid uuid, generation_hash text, columns jsonb, unique_key text[])
ON CONFLICT ON CONSTRAINT dataset_versions_generation DO NOTHING
"""
_FIND_GENERATIONS = """
SELECT v.dataset_uuid, v.dataset_version
  FROM unnest(%(dataset_uuids)s::uuid[], %(hashes)s::text[]) AS w (dataset_uuid, generation_hash)
  JOIN dataset_versions v USING (dataset_uuid, generation_hash)
"""


async def insert_generations(
    conn: Conn, dag: Dag, datasets: Mapping[OutputName, UUID], hashes: Mapping[str, str]
) -> dict[UUID, UUID]:
    """Insert the missing generations. Returns the generation of each dataset."""
    shared = find_buffered_outputs(dag)
    rows = [
        _make_generation_row(
            datasets[job.name, output], hashes[job.name], shared.get((job.name, output))
        )
        for job in dag.jobs
        for output in job.outputs
    ]
    values = {
        "rows": Jsonb(rows),
        "dataset_uuids": [row["dataset_uuid"] for row in rows],
        "hashes": [row["generation_hash"] for row in rows],
    }
    await conn.execute(_INSERT_GENERATIONS, values)
    await buffer_columns.add_columns(conn, rows)
    return {
        row[0]: row[1] for row in await (await conn.execute(_FIND_GENERATIONS, values)).fetchall()
    }


def _make_generation_row(
    dataset_uuid: UUID, job_hash: str, shared: BufferedDataset | None
) -> dict[str, Any]:
    """Return a generation row, identified by the job's hash or by the buffered declaration."""
    if shared is None:
        return {"dataset_uuid": str(dataset_uuid), "generation_hash": job_hash}
    return {
        "dataset_uuid": str(dataset_uuid),
        "generation_hash": shared.generation,
        "columns": [column.shape for column in shared.columns],
        "unique_key": list(shared.unique_key),
    }


_RECORD_COLUMNS = """
UPDATE dataset_versions v SET analysed_columns = w.columns
  FROM jsonb_to_recordset(%(rows)s) AS w (dataset_version uuid, columns jsonb)
 WHERE v.dataset_version = w.dataset_version
"""


async def record_columns(conn: Conn, columns: Mapping[UUID, list[dict[str, str]]]) -> None:
    """Record the columns that the deploy found for generations, by `dataset_version`."""
    rows = [
        {"dataset_version": str(dataset_version), "columns": generation_columns}
        for dataset_version, generation_columns in columns.items()
    ]
    if rows:
        await conn.execute(_RECORD_COLUMNS, {"rows": Jsonb(rows)})
