"""Writing a DAG's definition: jobs, datasets, generations, revisions and their edges.

A handful of statements whatever the number of jobs. Nothing here moves a pointer.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import Buffer, buffers
from trace_etl.dag.complaints import suggest
from trace_etl.dag.positions import locate
from trace_etl.model.dag import Dag, Job
from trace_etl.model.errors import Invalid
from trace_etl.policy.generations import definition_hash, generation_hashes, job_definition
from trace_etl.state.db.pool import Conn

Place = tuple[str, str]
"""A job and one of its outputs."""


@dataclass(frozen=True)
class Written:
    """A DAG's definition as rows: ids by name."""

    jobs: dict[str, UUID]
    revisions: dict[str, UUID]
    datasets: dict[Place, UUID]
    versions: dict[UUID, UUID]
    """The generation of every dataset."""


async def write(conn: Conn, org_id: UUID, dag_id: UUID, dag: Dag, text: str) -> Written:
    """Write what is not there yet. Raises Invalid for datasets that nobody publishes."""
    outside = await upstream(conn, org_id, dag, text)
    jobs = await _jobs(conn, org_id, dag_id, dag)
    datasets = await _datasets(conn, org_id, dag, jobs)
    generations = generation_hashes(dag)
    versions = await _versions(conn, dag, datasets, generations)
    revisions, fresh = await _revisions(conn, dag, jobs, generations)
    new = [job for job in dag.jobs if job.name in fresh]
    await _inputs(conn, new, revisions, datasets, versions, outside)
    await _outputs(conn, new, revisions, datasets, versions)
    return Written(jobs, revisions, datasets, versions)


# Not what this very DAG published so far: what it still publishes is an edge inside the file.
_BY_NAME = """
SELECT DISTINCT p.name, p.dataset_uuid
  FROM publications p JOIN dataset_producers d USING (dataset_uuid) JOIN jobs j USING (job_id)
  JOIN dags g USING (dag_id)
 WHERE p.org_id = %(org_id)s AND g.name <> %(dag)s
"""


async def upstream(conn: Conn, org_id: UUID, dag: Dag, text: str) -> dict[str, UUID]:
    """The datasets of other DAGs that this one reads, by name. Raises Invalid."""
    wanted = {i.dataset for job in dag.jobs for i in job.inputs if i.dataset}
    if not wanted:
        return {}
    rows = await (await conn.execute(_BY_NAME, {"org_id": org_id, "dag": dag.name})).fetchall()
    known = {row[0]: row[1] for row in rows}
    missing = [
        (("jobs", n, "inputs", m, "from", "dataset"), i.dataset)
        for n, job in enumerate(dag.jobs)
        for m, i in enumerate(job.inputs)
        if i.dataset and i.dataset not in known
    ]
    if missing:
        located = locate(text)
        there = "; none is published yet"
        raise Invalid(
            [
                located.fault(
                    path,
                    f"no published dataset {name!r}" + (suggest(name, known) if known else there),
                )
                for path, name in missing
            ]
        )
    return {name: known[name] for name in wanted}


_ADD_JOBS = """
INSERT INTO jobs (org_id, dag_id, name)
SELECT %(org_id)s, %(dag_id)s, n FROM unnest(%(names)s::text[]) n
ON CONFLICT ON CONSTRAINT jobs_name_per_dag DO NOTHING
"""
_JOBS = "SELECT name, job_id FROM jobs WHERE dag_id = %(dag_id)s AND name = ANY(%(names)s)"


async def _jobs(conn: Conn, org_id: UUID, dag_id: UUID, dag: Dag) -> dict[str, UUID]:
    values = {"org_id": org_id, "dag_id": dag_id, "names": [job.name for job in dag.jobs]}
    await conn.execute(_ADD_JOBS, values)
    return {row[0]: row[1] for row in await (await conn.execute(_JOBS, values)).fetchall()}


_ADD_DATASETS = """
INSERT INTO datasets (org_id, job_id, output_name)
SELECT %(org_id)s, job_id, output_name
  FROM unnest(%(job_ids)s::uuid[], %(outputs)s::text[]) AS w (job_id, output_name)
ON CONFLICT ON CONSTRAINT datasets_output_per_job DO NOTHING
"""
_DATASETS = """
SELECT job_id, output_name, dataset_uuid FROM datasets WHERE job_id = ANY(%(job_ids)s)
"""


async def _datasets(
    conn: Conn, org_id: UUID, dag: Dag, jobs: Mapping[str, UUID]
) -> dict[Place, UUID]:
    shared = await _buffered(conn, org_id, dag)
    every = [(job.name, output) for job in dag.jobs for output in job.outputs]
    places = [place for place in every if place not in shared]
    values = {
        "org_id": org_id,
        "job_ids": [jobs[job] for job, _ in places],
        "outputs": [output for _, output in places],
    }
    await conn.execute(_ADD_DATASETS, values)
    rows = await (await conn.execute(_DATASETS, values)).fetchall()
    names = {job_id: name for name, job_id in jobs.items()}
    return {**{(names[row[0]], row[1]): row[2] for row in rows}, **shared}


# The row is held until the deploy ends, in the order of names: two deploys that say different
# things of one name come one after the other, and the second is told.
_ADD_BUFFERED = """
INSERT INTO datasets (org_id, buffer_name, output_name)
SELECT %(org_id)s, n, n FROM unnest(%(names)s::text[]) n ORDER BY n
ON CONFLICT ON CONSTRAINT datasets_buffer_per_org DO UPDATE SET buffer_name = EXCLUDED.buffer_name
RETURNING buffer_name, dataset_uuid
"""


async def _buffered(conn: Conn, org_id: UUID, dag: Dag) -> dict[Place, UUID]:
    """The datasets that belong to a name: whoever publishes it as buffered writes it."""
    places = {place: one.name for place, one in buffers(dag).items()}
    if not places:
        return {}
    values = {"org_id": org_id, "names": sorted(set(places.values()))}
    rows = await (await conn.execute(_ADD_BUFFERED, values)).fetchall()
    known = {row[0]: row[1] for row in rows}
    return {place: known[name] for place, name in places.items()}


_ADD_VERSIONS = """
INSERT INTO dataset_versions (dataset_uuid, generation_hash, columns, unique_key)
SELECT DISTINCT ON (dataset_uuid, generation_hash) *
  FROM jsonb_to_recordset(%(rows)s) AS r (
       dataset_uuid uuid, generation_hash text, columns jsonb, unique_key text[])
ON CONFLICT ON CONSTRAINT dataset_versions_generation DO NOTHING
"""
_VERSIONS = """
SELECT v.dataset_uuid, v.dataset_version
  FROM unnest(%(dataset_uuids)s::uuid[], %(hashes)s::text[]) AS w (dataset_uuid, generation_hash)
  JOIN dataset_versions v USING (dataset_uuid, generation_hash)
"""


async def _versions(
    conn: Conn, dag: Dag, datasets: Mapping[Place, UUID], generations: Mapping[str, str]
) -> dict[UUID, UUID]:
    shared = buffers(dag)
    rows = [
        _version(datasets[job.name, output], generations[job.name], shared.get((job.name, output)))
        for job in dag.jobs
        for output in job.outputs
    ]
    values = {
        "rows": Jsonb(rows),
        "dataset_uuids": [row["dataset_uuid"] for row in rows],
        "hashes": [row["generation_hash"] for row in rows],
    }
    await conn.execute(_ADD_VERSIONS, values)
    return {row[0]: row[1] for row in await (await conn.execute(_VERSIONS, values)).fetchall()}


def _version(dataset_uuid: UUID, generation: str, shared: Buffer | None) -> dict[str, Any]:
    """A generation: of a job's definition, or of what all who write a buffered dataset say."""
    row = {"dataset_uuid": str(dataset_uuid), "generation_hash": generation}
    if shared is None:
        return row
    columns = [asdict(column) for column in shared.columns]
    told = {"columns": columns, "unique_key": list(shared.unique_key)}
    return {**row, "generation_hash": shared.generation, **told}


_ADD_REVISIONS = """
INSERT INTO job_revisions (
    job_id, definition_hash, generation_hash, definition, activation, runtime, operator, config,
    source, execution_strategy, update_strategy, unique_key, max_attempts, timeout_seconds,
    heartbeat_timeout_seconds, priority, max_concurrency, max_queue_depth, max_queue_age,
    bootstrap, secrets, udf)
SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (
    job_id uuid, definition_hash text, generation_hash text, definition jsonb, activation text,
    runtime text, operator text, config jsonb, source jsonb, execution_strategy text,
    update_strategy text, unique_key text[], max_attempts integer, timeout_seconds integer,
    heartbeat_timeout_seconds integer, priority text, max_concurrency integer,
    max_queue_depth integer, max_queue_age integer, bootstrap jsonb, secrets text[], udf jsonb)
ON CONFLICT ON CONSTRAINT job_revisions_definition DO NOTHING
RETURNING job_id
"""
_REVISIONS = """
SELECT r.job_id, r.revision_id
  FROM unnest(%(job_ids)s::uuid[], %(hashes)s::text[]) AS w (job_id, definition_hash)
  JOIN job_revisions r USING (job_id, definition_hash)
"""


async def _revisions(
    conn: Conn, dag: Dag, jobs: Mapping[str, UUID], generations: Mapping[str, str]
) -> tuple[dict[str, UUID], set[str]]:
    """The revision of every job by name, and the jobs whose revision was not there before."""
    # The generation is part of the identity: a job that did not change itself, but whose upstream
    # did, writes another dataset version.
    hashes = {job.name: f"{definition_hash(job)}:{generations[job.name]}" for job in dag.jobs}
    rows = [
        {
            **_columns(job),
            "job_id": str(jobs[job.name]),
            "definition_hash": hashes[job.name],
            "generation_hash": generations[job.name],
        }
        for job in dag.jobs
    ]
    added = await (await conn.execute(_ADD_REVISIONS, {"rows": Jsonb(rows)})).fetchall()
    names = {job_id: name for name, job_id in jobs.items()}
    known = {"job_ids": list(names), "hashes": [hashes[name] for name in names.values()]}
    found = await (await conn.execute(_REVISIONS, known)).fetchall()
    return {names[row[0]]: row[1] for row in found}, {names[row[0]] for row in added}


def _columns(job: Job) -> dict[str, Any]:
    whole = job_definition(job)
    columns = {k: v for k, v in whole.items() if k not in ("name", "inputs", "outputs")}
    return {**columns, "definition": whole}


_ADD_INPUTS = """
INSERT INTO job_inputs (revision_id, input_index, name, dataset_uuid, dataset_version, where_map)
SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (
    revision_id uuid, input_index integer, name text, dataset_uuid uuid, dataset_version uuid,
    where_map jsonb)
"""


async def _inputs(
    conn: Conn,
    new: list[Job],
    revisions: Mapping[str, UUID],
    datasets: Mapping[Place, UUID],
    versions: Mapping[UUID, UUID],
    outside: Mapping[str, UUID],
) -> None:
    rows: list[dict[str, Any]] = []
    for job in new:
        for n, item in enumerate(job.inputs):
            inside = item.job is not None and item.output is not None
            dataset = (
                datasets[item.job or "", item.output or ""]
                if inside
                else outside[item.dataset or ""]
            )
            rows.append(
                {
                    "revision_id": str(revisions[job.name]),
                    "input_index": n,
                    "name": item.name,
                    "dataset_uuid": str(dataset),
                    "dataset_version": str(versions[dataset]) if inside else None,
                    "where_map": item.where or None,
                }
            )
    await conn.execute(_ADD_INPUTS, {"rows": Jsonb(rows)})


_ADD_OUTPUTS = """
INSERT INTO job_outputs (revision_id, output_index, name, dataset_uuid, dataset_version)
SELECT * FROM jsonb_to_recordset(%(rows)s) AS r (
    revision_id uuid, output_index integer, name text, dataset_uuid uuid, dataset_version uuid)
"""


async def _outputs(
    conn: Conn,
    new: list[Job],
    revisions: Mapping[str, UUID],
    datasets: Mapping[Place, UUID],
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
    await conn.execute(_ADD_OUTPUTS, {"rows": Jsonb(rows)})


_KEEP_COLUMNS = """
UPDATE dataset_versions v SET analysed_columns = w.columns
  FROM jsonb_to_recordset(%(rows)s) AS w (dataset_version uuid, columns jsonb)
 WHERE v.dataset_version = w.dataset_version
"""


async def keep_columns(
    conn: Conn, written: Written, columns: Mapping[Place, list[dict[str, str]]]
) -> None:
    """Remember what the columns of outputs will be, with their generations."""
    rows = [
        {"dataset_version": str(written.versions[written.datasets[place]]), "columns": shape}
        for place, shape in columns.items()
    ]
    if rows:
        await conn.execute(_KEEP_COLUMNS, {"rows": Jsonb(rows)})


def publications(dag: Dag, written: Written) -> list[dict[str, Any]]:
    """What the DAG publishes, as rows."""
    return [
        {
            "name": entry.name,
            "dataset_uuid": str(written.datasets[entry.job, entry.output]),
            "description": entry.description,
            "storage": entry.storage,
            "write_mode": entry.write_mode,
            "columns": [asdict(c) for c in entry.columns] if entry.columns else None,
            "unique_key": list(dag.job(entry.job).unique_key),
        }
        for entry in dag.publish
    ]
