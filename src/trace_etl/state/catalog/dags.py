"""Reading the deployed DAGs."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class DeployedDataset:
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    """What readers see."""
    building_version: UUID | None
    """What is being built beside it."""
    published: str | None
    columns: list[dict[str, str]] | None


_DATASETS_OF = """
SELECT j.name, o.name, d.dataset_uuid, d.dataset_version, d.building_version, p.name,
       v.analysed_columns
  FROM jobs j JOIN job_outputs o
    ON o.revision_id = coalesce(j.building_revision_id, j.revision_id)
  JOIN datasets d ON d.dataset_uuid = o.dataset_uuid
  JOIN dataset_versions v ON v.dataset_version = o.dataset_version
  LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE j.dag_id = %(dag_id)s AND j.active
 ORDER BY j.name, o.output_index
"""


async def datasets_of(conn: Conn, dag_id: UUID) -> list[DeployedDataset]:
    """The datasets that a DAG's current jobs produce."""
    cursor = await conn.execute(_DATASETS_OF, {"dag_id": dag_id})
    return [DeployedDataset(*row) for row in await cursor.fetchall()]


_VERSION_OF = "SELECT dag_version FROM dags WHERE org_id = %(org_id)s AND name = %(name)s"


async def version_of(conn: Conn, org_id: UUID, name: str) -> UUID | None:
    """The version that a DAG is at; None when there is no such DAG."""
    row = await (await conn.execute(_VERSION_OF, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


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
