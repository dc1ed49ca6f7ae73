"""Read the deployed state of a DAG, which a deploy plan starts from."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from psycopg.types.multirange import Multirange

from trace_etl.model.dag import Dag
from trace_etl.model.deploy_plan import GenerationContents
from trace_etl.policy.deploy.deploy_plan import (
    DeployedState,
    find_affected_jobs,
)
from trace_etl.state.db.pool import Conn, forbid_table_scans

_DAG = "SELECT dag_id, dag_version FROM dags WHERE org_id = %(org_id)s AND name = %(name)s"
_JOBS = """
SELECT j.name, coalesce(r.definition, '{}'), r.generation_hash, j.active, b.generation_hash
  FROM jobs j JOIN job_revisions r USING (revision_id)
  LEFT JOIN job_revisions b ON b.revision_id = j.building_revision_id
 WHERE j.dag_id = %(dag_id)s
"""
_PUBLISHED = """
SELECT p.name, string_agg(j.name || '.' || d.output_name, ', '
                          ORDER BY j.name || '.' || d.output_name COLLATE "C")
  FROM publications p JOIN dataset_producers d USING (dataset_uuid) JOIN jobs j USING (job_id)
 WHERE j.dag_id = %(dag_id)s
 GROUP BY p.name
"""
_JOBS_OF_VERSION = """
SELECT j.name, coalesce(r.definition, '{}'), r.generation_hash, true, NULL
  FROM dag_version_jobs m JOIN jobs j USING (job_id)
  JOIN job_revisions r ON r.revision_id = m.revision_id
 WHERE m.dag_version = %(dag_version)s
"""
_PUBLISHED_BY_VERSION = """
SELECT p.name, string_agg(j.name || '.' || d.output_name, ', '
                          ORDER BY j.name || '.' || d.output_name COLLATE "C")
  FROM dag_versions v
 CROSS JOIN LATERAL jsonb_populate_recordset(NULL::publication_entry, v.publications) p
  JOIN dataset_producers d USING (dataset_uuid)
  JOIN dag_version_jobs m ON m.dag_version = v.dag_version AND m.job_id = d.job_id
  JOIN jobs j ON j.job_id = d.job_id
 WHERE v.dag_version = %(dag_version)s
 GROUP BY p.name
"""
# Sources and splitters write no partitions: the scopes of their events are counted instead.
_CONTENTS = """
SELECT j.name, o.name, greatest(p.partitions, e.scopes), p.partitions, p.row_count, p.byte_count,
       coalesce(p.ranges, e.ranges), p.tasks
  FROM jobs j
  JOIN job_outputs o ON o.revision_id = coalesce(
       (SELECT m.revision_id FROM dag_version_jobs m
         WHERE m.dag_version = %(dag_version)s AND m.job_id = j.job_id), j.revision_id)
 CROSS JOIN LATERAL (
       -- As text: the index by task would read the partitions of all generations in this order.
       SELECT count(*) AS partitions, count(DISTINCT task_id::text) AS tasks,
              coalesce(sum(row_count), 0)::bigint AS row_count,
              coalesce(sum(byte_count), 0)::bigint AS byte_count,
              range_agg(int8range(range_start, range_end, '[]'))
                  FILTER (WHERE range_start IS NOT NULL) AS ranges
         FROM partitions WHERE dataset_version = o.dataset_version
 ) p
 CROSS JOIN LATERAL (
       SELECT count(DISTINCT scope_key) AS scopes,
              range_agg(int8range(range_start, range_end, '[]'))
                  FILTER (WHERE range_start IS NOT NULL) AS ranges
         FROM events WHERE p.partitions = 0 AND dataset_version = o.dataset_version
 ) e
 WHERE j.dag_id = %(dag_id)s AND j.name = ANY(%(names)s)
"""
_READERS = """
SELECT p.name, array_agg(DISTINCT g.name || '.' || j.name ORDER BY g.name || '.' || j.name)
  FROM publications p JOIN dataset_producers d USING (dataset_uuid) JOIN jobs own USING (job_id)
  JOIN job_inputs i ON i.dataset_uuid = p.dataset_uuid AND i.dataset_version IS NULL
  JOIN jobs j ON j.active AND i.revision_id IN (j.revision_id, j.building_revision_id)
  JOIN dags g ON g.dag_id = j.dag_id
 WHERE own.dag_id = %(dag_id)s AND j.dag_id <> own.dag_id
   -- A dataset that another DAG also writes keeps a producer, so its readers lose nothing.
   AND NOT EXISTS (SELECT FROM dataset_producers other JOIN jobs o USING (job_id)
                    WHERE other.dataset_uuid = p.dataset_uuid AND o.dag_id <> own.dag_id)
 GROUP BY p.name
"""


@dataclass(frozen=True)
class DeployedDag:
    """The deployed state of a DAG. `dag_id` is None if the DAG was never deployed."""

    dag_id: UUID | None
    dag_version: UUID | None
    jobs: dict[str, DeployedState]
    published: dict[str, str]
    readers: dict[str, list[str]]
    """Jobs of other DAGs by the published name that they read."""


async def get_deployed_dag(
    conn: Conn, org_id: UUID, dag: Dag, version: UUID | None = None
) -> DeployedDag:
    """Read the deployed version of a DAG, with the contents that the new file replaces.

    With `version`, read that version as if it were deployed, with what is kept of its contents.
    """
    await forbid_table_scans(conn)
    row = await (await conn.execute(_DAG, {"org_id": org_id, "name": dag.name})).fetchone()
    if row is None:
        return DeployedDag(None, None, {}, {}, {})
    key = {"dag_id": row[0], "dag_version": version}
    rows = await (await conn.execute(_JOBS_OF_VERSION if version else _JOBS, key)).fetchall()
    jobs = {r[0]: DeployedState(r[1], r[2], r[3], {}, r[4]) for r in rows}
    names = await conn.execute(_PUBLISHED_BY_VERSION if version else _PUBLISHED, key)
    published = dict(await names.fetchall())
    readers = await find_readers(conn, row[0])
    affected = find_affected_jobs(jobs, published, dag)
    contents = await _fetch_contents(conn, {**key, "names": affected})
    deployed = {name: replace(job, contents=contents.get(name, {})) for name, job in jobs.items()}
    return DeployedDag(row[0], row[1], deployed, published, readers)


async def find_readers(conn: Conn, dag_id: UUID) -> dict[str, list[str]]:
    """Return the jobs of other DAGs, as `dag.job`, by the published name of this DAG that they read."""
    cursor = await conn.execute(_READERS, {"dag_id": dag_id})
    return dict(await cursor.fetchall())


async def _fetch_contents(
    conn: Conn, values: dict[str, Any]
) -> dict[str, dict[str, GenerationContents]]:
    by_job: dict[str, dict[str, GenerationContents]] = {}
    if values["names"]:
        cursor = await conn.execute(_CONTENTS, values)
        for job, output, scopes, partitions, rows, size, ranges, tasks in await cursor.fetchall():
            contents = GenerationContents(
                scopes, partitions, rows, size, to_block_ranges(ranges), tasks
            )
            by_job.setdefault(job, {})[output] = contents
    return by_job


def to_block_ranges(ranges: Multirange[int] | None) -> list[tuple[int, int]]:
    """Convert a multirange to pairs of first and last block."""
    return [
        (r.lower, r.upper - 1) for r in ranges or () if r.lower is not None and r.upper is not None
    ]
