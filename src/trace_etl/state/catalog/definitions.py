"""Write a DAG's definition: jobs, datasets, generations and revisions.

The number of statements does not depend on the number of jobs. This module moves no pointers.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from trace_etl.dag.error_messages import suggest
from trace_etl.dag.positions import Located, locate
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Fault, Invalid
from trace_etl.policy.deploy.generations import generation_hashes
from trace_etl.state.bundles import bundles
from trace_etl.state.catalog import generations, revision_rows
from trace_etl.state.catalog.generations import OutputName
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class WrittenDefinition:
    """The ids of a DAG's rows."""

    jobs: dict[str, UUID]
    """Job ids by name."""
    revisions: dict[str, UUID]
    """Revision ids by job name."""
    datasets: dict[OutputName, UUID]
    versions: dict[UUID, UUID]
    """The generation of each dataset."""

    def version_of(self, output: OutputName) -> UUID:
        """Return the generation that an output writes."""
        return self.versions[self.datasets[output]]


async def write_definition(
    conn: Conn, org_id: UUID, dag_id: UUID, dag: Dag, text: str
) -> WrittenDefinition:
    """Insert the rows of a definition that do not exist yet. Raises Invalid for unknown inputs and bundles."""
    upstream = await find_upstream(conn, org_id, dag, text)
    await bundles.require_bundles(conn, org_id, dag, text)
    jobs = await _insert_jobs(conn, org_id, dag_id, dag)
    datasets = await generations.insert_datasets(conn, org_id, dag, jobs)
    hashes = generation_hashes(dag)
    versions = await generations.insert_generations(conn, dag, datasets, hashes)
    revisions, new_names = await revision_rows.insert_revisions(conn, dag, jobs, hashes)
    new = [job for job in dag.jobs if job.name in new_names]
    await revision_rows.insert_inputs(conn, new, revisions, datasets, versions, upstream)
    await revision_rows.insert_outputs(conn, new, revisions, datasets, versions)
    return WrittenDefinition(jobs, revisions, datasets, versions)


# Names that this DAG publishes are left out: a job reads them by an edge inside the DAG.
_FIND_PUBLISHED = """
SELECT DISTINCT p.name, p.dataset_uuid
  FROM publications p JOIN dataset_producers d USING (dataset_uuid) JOIN jobs j USING (job_id)
  JOIN dags g USING (dag_id)
 WHERE p.org_id = %(org_id)s AND g.name <> %(dag)s
   AND (%(names)s::text[] IS NULL OR p.name = ANY(%(names)s))
 ORDER BY p.name LIMIT %(limit)s
"""
_MAX_KNOWN = 500
_MAX_SUGGESTIONS = 10
"""The number of missing names that get a suggestion: comparing names takes processor time."""


async def find_upstream(conn: Conn, org_id: UUID, dag: Dag, text: str) -> dict[str, UUID]:
    """Return the datasets of other DAGs that this DAG reads, by published name. Raises Invalid."""
    names = {i.dataset for job in dag.jobs for i in job.inputs if i.dataset}
    if not names:
        return {}
    found = await _find_published(conn, org_id, dag, list(names), len(names))
    missing = sorted(names - found.keys())
    if missing:
        known = await _find_published(conn, org_id, dag, None, _MAX_KNOWN)
        advice = dict.fromkeys(missing, "; no other DAG publishes a dataset yet")
        if known:
            advice = {name: suggest(name, known) for name in missing[:_MAX_SUGGESTIONS]}
        raise Invalid(list(_find_missing_inputs(dag, locate(text), missing, advice)))
    return found


async def _find_published(
    conn: Conn, org_id: UUID, dag: Dag, names: list[str] | None, limit: int
) -> dict[str, UUID]:
    values = {"org_id": org_id, "dag": dag.name, "names": names, "limit": limit}
    rows = await (await conn.execute(_FIND_PUBLISHED, values)).fetchall()
    return {row[0]: row[1] for row in rows}


def _find_missing_inputs(
    dag: Dag, located: Located, missing: list[str], advice: dict[str, str]
) -> Iterator[Fault]:
    for n, job in enumerate(dag.jobs):
        for m, item in enumerate(job.inputs):
            if item.dataset in missing:
                path = ("jobs", n, "inputs", m, "from", "dataset")
                rule = f"no published dataset {item.dataset!r}"
                yield located.fault(path, f"{rule}{advice.get(item.dataset, '')}")


_INSERT_JOBS = """
INSERT INTO jobs (org_id, dag_id, name)
SELECT %(org_id)s, %(dag_id)s, n FROM unnest(%(names)s::text[]) n
ON CONFLICT ON CONSTRAINT jobs_name_per_dag DO NOTHING
"""
_FIND_JOBS = "SELECT name, job_id FROM jobs WHERE dag_id = %(dag_id)s AND name = ANY(%(names)s)"


async def _insert_jobs(conn: Conn, org_id: UUID, dag_id: UUID, dag: Dag) -> dict[str, UUID]:
    values = {"org_id": org_id, "dag_id": dag_id, "names": [job.name for job in dag.jobs]}
    await conn.execute(_INSERT_JOBS, values)
    return {row[0]: row[1] for row in await (await conn.execute(_FIND_JOBS, values)).fetchall()}


def publication_entries(dag: Dag, written: WrittenDefinition) -> list[dict[str, Any]]:
    """Return the published names of a DAG as JSON rows."""
    return [
        {
            "name": entry.name,
            "dataset_uuid": str(written.datasets[entry.job, entry.output]),
            "description": entry.description,
            "storage": entry.storage,
            "write_mode": entry.write_mode,
            "columns": [asdict(c) for c in entry.columns] if entry.columns else None,
            "unique_key": list(dag.job(entry.job).unique_key),
            "read_roles": entry.read_roles,
            "hot_dataset_uuid": str(written.datasets[entry.hot]) if entry.hot else None,
        }
        for entry in dag.publish
    ]
