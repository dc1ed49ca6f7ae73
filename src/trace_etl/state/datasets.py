"""Reading the registry of datasets."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.state.pool import Conn


@dataclass(frozen=True)
class DatasetView:
    name: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    partitions: int
    row_count: int
    byte_count: int
    range_start: int | None
    range_end: int | None
    updated_at: datetime | None


_VIEW = """
SELECT p.name, g.name AS dag, j.name AS job, d.output_name AS output, d.dataset_uuid,
       d.dataset_version, count(c.partition_key) AS partitions,
       coalesce(sum(c.row_count), 0)::bigint AS row_count,
       coalesce(sum(c.byte_count), 0)::bigint AS byte_count,
       min(c.range_start) AS range_start, max(c.range_end) AS range_end,
       max(c.committed_at) AS updated_at
  FROM datasets d JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  LEFT JOIN publications p USING (dataset_uuid)
  LEFT JOIN partitions c ON c.dataset_version = d.dataset_version
 WHERE d.org_id = %(org_id)s AND j.active AND (%(name)s::text IS NULL OR p.name = %(name)s)
 GROUP BY p.name, g.name, j.name, d.output_name, d.dataset_uuid, d.dataset_version
 ORDER BY p.name NULLS LAST, g.name, j.name, d.output_name
"""


async def listing(conn: Conn, org_id: UUID, name: str | None = None) -> list[DatasetView]:
    """Every dataset of the current jobs; published ones first, by name."""
    async with conn.cursor(row_factory=class_row(DatasetView)) as cursor:
        await cursor.execute(_VIEW, {"org_id": org_id, "name": name})
        return await cursor.fetchall()


async def get(conn: Conn, org_id: UUID, name: str) -> DatasetView:
    """One published dataset. Raises NotFound."""
    found = await listing(conn, org_id, name)
    if not found:
        raise NotFound(f"no published dataset {name!r}; `trace datasets` lists them")
    return found[0]


_UUID_OF = "SELECT dataset_uuid FROM publications WHERE org_id = %(org_id)s AND name = %(name)s"


async def uuid_of(conn: Conn, org_id: UUID, name: str) -> UUID | None:
    """The dataset behind a published name."""
    row = await (await conn.execute(_UUID_OF, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


@dataclass(frozen=True)
class PublishedDataset:
    name: str
    dataset_uuid: UUID
    dataset_version: UUID


# Everything a query may see, for the Query Service's own role: no jobs, no tasks.
_PUBLISHED = """
SELECT p.name, d.dataset_uuid, d.dataset_version
  FROM publications p JOIN datasets d USING (dataset_uuid)
 WHERE p.org_id = %(org_id)s AND p.name = ANY(%(names)s)
"""
_PUBLISHED_NAMES = "SELECT name FROM publications WHERE org_id = %(org_id)s ORDER BY name"


async def published(conn: Conn, org_id: UUID, names: list[str]) -> list[PublishedDataset]:
    """The current generation behind each of the given names that is published."""
    async with conn.cursor(row_factory=class_row(PublishedDataset)) as cursor:
        await cursor.execute(_PUBLISHED, {"org_id": org_id, "names": names})
        return await cursor.fetchall()


async def published_names(conn: Conn, org_id: UUID) -> list[str]:
    """Every published name."""
    cursor = await conn.execute(_PUBLISHED_NAMES, {"org_id": org_id})
    return [row[0] for row in await cursor.fetchall()]
