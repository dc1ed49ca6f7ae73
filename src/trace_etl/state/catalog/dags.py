"""Read deployed DAGs."""

from uuid import UUID

from trace_etl.api.user.dags.dags import (
    DagDetail,
    DagItem,
    DagVersionDetail,
    DagVersionItem,
    DeployedDataset,
)
from trace_etl.api.user.dags.jobs import JobItem
from trace_etl.model.errors import NotFound
from trace_etl.state.catalog.jobs import JobFilter, list_jobs
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import (
    NewestFirstKey,
    fetch_all,
    fetch_dicts,
    fetch_one,
    page_start_values,
)

_JOBS_PER_PAGE = 1_000

_DATASETS = """
SELECT j.name AS job, o.name AS output, d.dataset_uuid, d.dataset_version, d.building_version,
       p.name AS published, v.analysed_columns AS columns
  FROM jobs j JOIN job_outputs o
    ON o.revision_id = coalesce(j.building_revision_id, j.revision_id)
  JOIN datasets d ON d.dataset_uuid = o.dataset_uuid
  JOIN dataset_versions v ON v.dataset_version = o.dataset_version
  LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE j.dag_id = %(dag_id)s AND j.active
 ORDER BY j.name, o.output_index
"""


async def list_dag_datasets(conn: Conn, dag_id: UUID) -> list[DeployedDataset]:
    """List the datasets that a DAG's active jobs produce."""
    return await fetch_all(conn, DeployedDataset, _DATASETS, {"dag_id": dag_id})


_VERSION = "SELECT dag_version FROM dags WHERE org_id = %(org_id)s AND name = %(name)s"


async def get_deployed_version(conn: Conn, org_id: UUID, name: str) -> UUID | None:
    """Return the deployed version of a DAG, or None if the DAG does not exist."""
    row = await (await conn.execute(_VERSION, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


_COUNT_JOBS = """
SELECT count(*) FROM (
       SELECT FROM jobs j JOIN dags d USING (dag_id)
        WHERE d.org_id = %(org_id)s AND d.name = %(name)s
        LIMIT %(limit)s) found
"""


async def has_more_jobs(conn: Conn, org_id: UUID, name: str, *, than: int) -> bool:
    """Return whether a DAG has more jobs than this, with jobs of earlier versions."""
    values = {"org_id": org_id, "name": name, "limit": than + 1}
    row = await (await conn.execute(_COUNT_JOBS, values)).fetchone()
    return row is not None and row[0] > than


_LIST = """
SELECT d.name AS dag, d.dag_version, d.deployed_at,
       (SELECT count(*) FROM jobs j WHERE j.dag_id = d.dag_id AND j.active) AS jobs
  FROM dags d
 WHERE d.org_id = %(org_id)s AND d.name > %(after)s AND d.dag_version IS NOT NULL ORDER BY d.name LIMIT %(limit)s
"""


async def list_dags(conn: Conn, org_id: UUID, *, after: str = "", limit: int) -> list[DagItem]:
    """List one page of the deployed DAGs, by name."""
    return await fetch_all(conn, DagItem, _LIST, {"org_id": org_id, "after": after, "limit": limit})


_GET = """
SELECT d.name AS dag, d.dag_version, d.deployed_at, v.text
  FROM dags d JOIN dag_versions v USING (dag_version)
 WHERE d.org_id = %(org_id)s AND d.name = %(name)s
"""


async def get_dag(conn: Conn, org_id: UUID, name: str) -> DagDetail:
    """Read one deployed DAG with its text and all its jobs. Raises NotFound."""
    rows = await fetch_dicts(conn, _GET, {"org_id": org_id, "name": name})
    if not rows:
        raise NotFound(f"no deployed DAG {name!r}; `trace dags` lists them")
    jobs = await _list_all_jobs(conn, org_id, name)
    return DagDetail(**rows[0], jobs=len(jobs), job_list=jobs)


async def _list_all_jobs(conn: Conn, org_id: UUID, dag: str) -> list[JobItem]:
    """List the jobs of a DAG in pages: other requests are answered between two pages of a large DAG."""
    jobs: list[JobItem] = []
    after: tuple[str, str] | None = None
    while True:
        page = await list_jobs(conn, org_id, JobFilter(dag=dag), after=after, limit=_JOBS_PER_PAGE)
        jobs += page
        if len(page) < _JOBS_PER_PAGE:
            return jobs
        after = (dag, page[-1].job)


_VERSIONS = """
SELECT v.dag_version, v.created_at, v.dag_version = d.dag_version AS is_current
  FROM dags d JOIN dag_versions v USING (dag_id)
 WHERE d.org_id = %(org_id)s AND d.name = %(name)s AND d.dag_version IS NOT NULL
   AND (%(before)s::timestamptz IS NULL OR (v.created_at, v.dag_version) < (%(before)s, %(before_id)s))
 ORDER BY v.created_at DESC, v.dag_version DESC LIMIT %(limit)s
"""


async def list_versions(
    conn: Conn, org_id: UUID, name: str, *, after: NewestFirstKey | None, limit: int
) -> list[DagVersionItem]:
    """List one page of the versions of a DAG, newest first. Raises NotFound."""
    if await get_deployed_version(conn, org_id, name) is None:
        raise NotFound(f"no deployed DAG {name!r}; `trace dags` lists them")
    values = {"org_id": org_id, "name": name, **page_start_values(after), "limit": limit}
    return await fetch_all(conn, DagVersionItem, _VERSIONS, values)


_GET_VERSION = """
SELECT v.dag_version, v.created_at, v.dag_version = d.dag_version AS is_current, v.text
  FROM dags d JOIN dag_versions v USING (dag_id)
 WHERE d.org_id = %(org_id)s AND d.name = %(name)s AND v.dag_version = %(dag_version)s
"""


async def get_version(conn: Conn, org_id: UUID, name: str, dag_version: UUID) -> DagVersionDetail:
    """Read one version of a DAG with its text. Raises NotFound."""
    values = {"org_id": org_id, "name": name, "dag_version": dag_version}
    found = await fetch_one(conn, DagVersionDetail, _GET_VERSION, values)
    if found is None:
        raise NotFound(f"no version {dag_version} of a DAG {name!r}; `trace versions` lists them")
    return found
