"""Deploying: jobs, revisions, edges and datasets of a DAG, in the caller's one transaction."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from trace_etl.model.dag import Dag, Input, Job
from trace_etl.model.errors import Fault, Invalid, NameTaken, NotFound
from trace_etl.plan.generations import definition_hash, generation_hashes
from trace_etl.state.pool import Conn


@dataclass(frozen=True)
class DeployedDataset:
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    published: str | None


@dataclass(frozen=True)
class Deployed:
    dag_version: UUID
    changed: bool
    datasets: list[DeployedDataset]


async def deploy(conn: Conn, org_id: UUID, dag: Dag, text: str) -> Deployed:
    """Make this text the DAG. The same text again changes nothing. Raises Invalid, NameTaken."""
    await conn.execute(_LOCK, {"key": f"deploy:{org_id}:{dag.name}"})
    dag_id = await _one(conn, _DAG, {"org_id": org_id, "name": dag.name})
    sha = hashlib.sha256(text.encode()).digest()
    version = await _one(conn, _VERSION, {"dag_id": dag_id, "sha": sha, "text": text})
    current = await _one(conn, _CURRENT, {"dag_id": dag_id})
    if current != version:
        await _Deployment(conn, org_id, dag_id, dag).run()
        await conn.execute(_SWITCH, {"dag_id": dag_id, "version": version})
    return Deployed(version, current != version, await datasets_of(conn, dag_id))


_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))"
_DAG = """
INSERT INTO dags (org_id, name) VALUES (%(org_id)s, %(name)s)
ON CONFLICT ON CONSTRAINT dags_name_per_org DO UPDATE SET name = EXCLUDED.name
RETURNING dag_id
"""
_VERSION = """
INSERT INTO dag_versions (dag_id, text_sha256, text) VALUES (%(dag_id)s, %(sha)s, %(text)s)
ON CONFLICT ON CONSTRAINT dag_versions_text DO UPDATE SET text = EXCLUDED.text
RETURNING dag_version
"""
_CURRENT = "SELECT dag_version FROM dags WHERE dag_id = %(dag_id)s"
_SWITCH = """
UPDATE dags SET dag_version = %(version)s, deployed_at = now() WHERE dag_id = %(dag_id)s
"""
_JOB = """
INSERT INTO jobs (org_id, dag_id, name) VALUES (%(org_id)s, %(dag_id)s, %(name)s)
ON CONFLICT ON CONSTRAINT jobs_name_per_dag DO UPDATE SET active = true
RETURNING job_id
"""
_DATASET = """
INSERT INTO datasets (org_id, job_id, output_name)
VALUES (%(org_id)s, %(job_id)s, %(output_name)s)
ON CONFLICT ON CONSTRAINT datasets_output_per_job DO UPDATE SET output_name = EXCLUDED.output_name
RETURNING dataset_uuid
"""
_GENERATION = """
INSERT INTO dataset_versions (dataset_uuid, generation_hash)
VALUES (%(dataset_uuid)s, %(generation_hash)s)
ON CONFLICT ON CONSTRAINT dataset_versions_generation
   DO UPDATE SET generation_hash = EXCLUDED.generation_hash
RETURNING dataset_version
"""
_POINT = """
UPDATE datasets SET dataset_version = %(dataset_version)s WHERE dataset_uuid = %(dataset_uuid)s
"""
_REVISION = """
INSERT INTO job_revisions (
    job_id, definition_hash, generation_hash, activation, runtime, operator, config, source,
    execution_strategy, update_strategy, unique_key, max_attempts, timeout_seconds,
    heartbeat_timeout_seconds, priority, max_concurrency, max_queue_depth, max_queue_age)
VALUES (
    %(job_id)s, %(definition_hash)s, %(generation_hash)s, %(activation)s, %(runtime)s,
    %(operator)s, %(config)s, %(source)s, %(execution_strategy)s, %(update_strategy)s,
    %(unique_key)s, %(max_attempts)s, %(timeout_seconds)s, %(heartbeat_timeout_seconds)s,
    %(priority)s, %(max_concurrency)s, %(max_queue_depth)s, %(max_queue_age)s)
ON CONFLICT ON CONSTRAINT job_revisions_definition DO NOTHING
RETURNING revision_id
"""
_KNOWN_REVISION = """
SELECT revision_id FROM job_revisions
 WHERE job_id = %(job_id)s AND definition_hash = %(definition_hash)s
"""
_ADOPT = "UPDATE jobs SET revision_id = %(revision_id)s WHERE job_id = %(job_id)s"
_INPUT = """
INSERT INTO job_inputs (revision_id, input_index, name, dataset_uuid, dataset_version, where_map)
VALUES (%(revision_id)s, %(input_index)s, %(name)s, %(dataset_uuid)s, %(dataset_version)s,
        %(where_map)s)
"""
_OUTPUT = """
INSERT INTO job_outputs (revision_id, output_index, name, dataset_uuid, dataset_version)
VALUES (%(revision_id)s, %(output_index)s, %(name)s, %(dataset_uuid)s, %(dataset_version)s)
"""
_RETIRE = """
UPDATE jobs SET active = false WHERE dag_id = %(dag_id)s AND name <> ALL(%(names)s)
"""
# What is still waiting for a definition that is gone would build a generation nobody reads.
_CANCEL_ABANDONED = """
UPDATE tasks t SET status = 'Canceled', finished_at = now(), retry_at = NULL, cause = NULL,
       error_message = 'the DAG was redeployed'
  FROM jobs j LEFT JOIN job_revisions now_revision ON now_revision.revision_id = j.revision_id
 WHERE j.dag_id = %(dag_id)s AND t.job_id = j.job_id
   AND (t.status = 'Queued' OR t.retry_at IS NOT NULL)
   AND (NOT j.active OR NOT EXISTS (
        SELECT FROM job_revisions r WHERE r.revision_id = t.revision_id
           AND r.generation_hash = now_revision.generation_hash))
"""
_TELL_RUNNING = """
UPDATE tasks t SET cancel_requested = true
  FROM jobs j LEFT JOIN job_revisions now_revision ON now_revision.revision_id = j.revision_id
 WHERE j.dag_id = %(dag_id)s AND t.job_id = j.job_id AND t.status = 'Running'
   AND (NOT j.active OR NOT EXISTS (
        SELECT FROM job_revisions r WHERE r.revision_id = t.revision_id
           AND r.generation_hash = now_revision.generation_hash))
"""
_UNPUBLISH = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id)
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
"""
_PUBLISH = """
INSERT INTO publications (org_id, name, dataset_uuid, description)
VALUES (%(org_id)s, %(name)s, %(dataset_uuid)s, %(description)s)
"""
_BY_NAME = """
SELECT dataset_uuid FROM publications WHERE org_id = %(org_id)s AND name = %(name)s
"""


class _Deployment:
    def __init__(self, conn: Conn, org_id: UUID, dag_id: UUID, dag: Dag) -> None:
        self.conn = conn
        self.org_id = org_id
        self.dag_id = dag_id
        self.dag = dag
        self.generations = generation_hashes(dag)
        self.datasets: dict[tuple[str, str], tuple[UUID, UUID]] = {}

    async def run(self) -> None:
        job_ids = {job.name: await self._job(job) for job in self.dag.jobs}
        for job in self.dag.jobs:
            await self._revision(job_ids[job.name], job)
        names = list(job_ids)
        await self.conn.execute(_RETIRE, {"dag_id": self.dag_id, "names": names})
        await self.conn.execute(_CANCEL_ABANDONED, {"dag_id": self.dag_id})
        await self.conn.execute(_TELL_RUNNING, {"dag_id": self.dag_id})
        await self._publish()

    async def _job(self, job: Job) -> UUID:
        values: dict[str, Any] = {"org_id": self.org_id, "dag_id": self.dag_id, "name": job.name}
        job_id = await _one(self.conn, _JOB, values)
        for output in job.outputs:
            dataset = {"org_id": self.org_id, "job_id": job_id, "output_name": output}
            dataset_uuid = await _one(self.conn, _DATASET, dataset)
            generation = {"dataset_uuid": dataset_uuid}
            generation["generation_hash"] = self.generations[job.name]
            version = await _one(self.conn, _GENERATION, generation)
            pointer = {"dataset_uuid": dataset_uuid, "dataset_version": version}
            await self.conn.execute(_POINT, pointer)
            self.datasets[job.name, output] = (dataset_uuid, version)
        return job_id

    async def _revision(self, job_id: UUID, job: Job) -> None:
        # The generation is part of the identity: a job that did not change itself, but whose
        # upstream did, writes another dataset version.
        generation = self.generations[job.name]
        identity = {"job_id": job_id, "definition_hash": f"{definition_hash(job)}:{generation}"}
        row = await (
            await self.conn.execute(_REVISION, {**_columns(job, generation), **identity})
        ).fetchone()
        if row is None:
            revision_id = await _one(self.conn, _KNOWN_REVISION, identity)
        else:
            revision_id = row[0]
            await self._edges(revision_id, job)
        await self.conn.execute(_ADOPT, {"job_id": job_id, "revision_id": revision_id})

    async def _edges(self, revision_id: UUID, job: Job) -> None:
        for n, item in enumerate(job.inputs):
            dataset_uuid, version = await self._upstream(job, n, item)
            await self.conn.execute(
                _INPUT,
                {
                    "revision_id": revision_id,
                    "input_index": n,
                    "name": item.name,
                    "dataset_uuid": dataset_uuid,
                    "dataset_version": version,
                    "where_map": Jsonb(item.where) if item.where else None,
                },
            )
        for n, output in enumerate(job.outputs):
            dataset_uuid, version = self.datasets[job.name, output]
            await self.conn.execute(
                _OUTPUT,
                {
                    "revision_id": revision_id,
                    "output_index": n,
                    "name": output,
                    "dataset_uuid": dataset_uuid,
                    "dataset_version": version,
                },
            )

    async def _upstream(self, job: Job, n: int, item: Input) -> tuple[UUID, UUID | None]:
        if item.job is not None and item.output is not None:
            return self.datasets[item.job, item.output]
        by_name = {"org_id": self.org_id, "name": item.dataset}
        row = await (await self.conn.execute(_BY_NAME, by_name)).fetchone()
        if row is None:
            where = f"job {job.name}, inputs[{n}].from.dataset"
            raise Invalid([Fault(where, f"no published dataset {item.dataset!r}")])
        return row[0], None

    async def _publish(self) -> None:
        await self.conn.execute(_UNPUBLISH, {"dag_id": self.dag_id})
        for entry in self.dag.publish:
            values = {
                "org_id": self.org_id,
                "name": entry.name,
                "dataset_uuid": self.datasets[entry.job, entry.output][0],
                "description": entry.description,
            }
            try:
                await self.conn.execute(_PUBLISH, values)
            except UniqueViolation as error:
                raise _taken(entry.name, error) from error


def _taken(name: str, error: UniqueViolation) -> Exception:
    if error.diag.constraint_name == "publications_dataset":
        return Invalid([Fault("publish", f"{name!r} publishes an output that has a name already")])
    return NameTaken(f"publish: the name {name!r} belongs to another DAG; choose another")


def _columns(job: Job, generation: str) -> dict[str, Any]:
    return {
        "generation_hash": generation,
        "activation": job.activation,
        "runtime": job.runtime,
        "operator": job.operator,
        "config": Jsonb(job.config),
        "source": Jsonb(asdict(job.source)) if job.source else None,
        "execution_strategy": job.execution_strategy,
        "update_strategy": job.update_strategy,
        "unique_key": list(job.unique_key),
        "max_attempts": job.max_attempts,
        "timeout_seconds": job.timeout_seconds,
        "heartbeat_timeout_seconds": job.heartbeat_timeout_seconds,
        "priority": job.priority,
        "max_concurrency": job.max_concurrency,
        "max_queue_depth": job.max_queue_depth,
        "max_queue_age": job.max_queue_age,
    }


_DATASETS_OF = """
SELECT j.name, d.output_name, d.dataset_uuid, d.dataset_version, p.name
  FROM jobs j JOIN datasets d USING (job_id)
  JOIN job_outputs o ON o.revision_id = j.revision_id AND o.dataset_uuid = d.dataset_uuid
  LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE j.dag_id = %(dag_id)s AND j.active
 ORDER BY j.name, o.output_index
"""


async def datasets_of(conn: Conn, dag_id: UUID) -> list[DeployedDataset]:
    """The datasets that a DAG's current jobs produce."""
    cursor = await conn.execute(_DATASETS_OF, {"dag_id": dag_id})
    return [DeployedDataset(*row) for row in await cursor.fetchall()]


async def _one(conn: Conn, query: Any, values: dict[str, Any]) -> Any:
    row = await (await conn.execute(query, values)).fetchone()
    if row is None:
        raise LookupError("a statement that always answers did not")
    return row[0]


_VIEW = """
SELECT d.name, d.dag_version, d.deployed_at,
       (SELECT count(*) FROM jobs j WHERE j.dag_id = d.dag_id AND j.active), v.text
  FROM dags d JOIN dag_versions v USING (dag_version)
 WHERE d.org_id = %(org_id)s
"""
_LIST = _VIEW + " AND d.name > %(after)s ORDER BY d.name LIMIT %(limit)s"


async def list_dags(
    conn: Conn, org_id: UUID, *, after: str = "", limit: int
) -> list[tuple[Any, ...]]:
    """Name, version, when deployed and number of jobs of the deployed DAGs, one page."""
    values = {"org_id": org_id, "after": after, "limit": limit}
    return [row[:4] for row in await (await conn.execute(_LIST, values)).fetchall()]


_GET = _VIEW + " AND d.name = %(name)s"


async def get(conn: Conn, org_id: UUID, name: str) -> tuple[tuple[Any, ...], str]:
    """One deployed DAG as in the list, and its text. Raises NotFound."""
    row = await (await conn.execute(_GET, {"org_id": org_id, "name": name})).fetchone()
    if row is None:
        raise NotFound(f"no deployed DAG {name!r}; `trace dags` lists them")
    return row[:4], row[4]
