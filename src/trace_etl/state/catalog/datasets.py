"""Reading the registry of datasets."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn


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
    write_mode: str | None
    producers: list[str]
    """As `dag.job.output`; several write a buffered dataset."""

    @property
    def position(self) -> tuple[int, str, str, str, str]:
        """Where the listing has it."""
        return int(self.name is None), self.name or "", self.dag, self.job, self.output


@dataclass(frozen=True)
class DatasetFilter:
    """What a listing is about; None: any."""

    name: str | None = None
    dag: str | None = None
    job: str | None = None
    published: bool | None = None


# A page is chosen first: only its datasets have their partitions added up.
_VIEW = """
WITH page AS (
    SELECT p.name, g.name AS dag, j.name AS job, w.output_name AS output, d.dataset_uuid,
           d.dataset_version, p.write_mode
      FROM datasets d JOIN dataset_producers w USING (dataset_uuid)
      JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
      LEFT JOIN publications p USING (dataset_uuid)
     WHERE d.org_id = %(org_id)s AND j.active AND d.dataset_version IS NOT NULL
       AND (%(name)s::text IS NULL OR p.name = %(name)s)
       AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
       AND (%(job)s::text IS NULL OR j.name = %(job)s)
       AND (%(published)s::boolean IS NULL OR (p.name IS NOT NULL) = %(published)s)
       -- Of the producers of a buffered dataset the listing has the first.
       AND (d.job_id IS NOT NULL OR (g.name, j.name, w.output_name) = (
            SELECT og.name, oj.name, o.output_name
              FROM dataset_producers o JOIN jobs oj USING (job_id) JOIN dags og USING (dag_id)
             WHERE o.dataset_uuid = d.dataset_uuid
               AND (%(dag)s::text IS NULL OR og.name = %(dag)s)
               AND (%(job)s::text IS NULL OR oj.name = %(job)s)
             ORDER BY 1, 2, 3 LIMIT 1))
       AND ((p.name IS NULL)::int, coalesce(p.name, ''), g.name, j.name, w.output_name)
         > (%(rank)s, %(after_name)s, %(after_dag)s, %(after_job)s, %(after_output)s)
     ORDER BY (p.name IS NULL)::int, coalesce(p.name, ''), g.name, j.name, w.output_name
     LIMIT %(limit)s
)
SELECT page.name, dag, job, output, dataset_uuid, dataset_version, write_mode, c.*,
       ARRAY(SELECT concat_ws('.', g.name, j.name, w.output_name)
               FROM dataset_producers w JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
              WHERE w.dataset_uuid = page.dataset_uuid ORDER BY 1) AS producers
  FROM page CROSS JOIN LATERAL (
       SELECT count(*) AS partitions, coalesce(sum(row_count), 0)::bigint AS row_count,
              coalesce(sum(byte_count), 0)::bigint AS byte_count, min(range_start) AS range_start,
              max(range_end) AS range_end, max(committed_at) AS updated_at
         FROM partitions WHERE dataset_version = page.dataset_version
  ) c
 ORDER BY (page.name IS NULL)::int, coalesce(page.name, ''), dag, job, output
"""


async def listing(
    conn: Conn,
    org_id: UUID,
    which: DatasetFilter,
    *,
    after: tuple[Any, ...] | None = None,
    limit: int,
) -> list[DatasetView]:
    """The datasets of the current jobs, one page; published ones first, by name."""
    names = ("rank", "after_name", "after_dag", "after_job", "after_output")
    position = dict(zip(names, after or (-1, "", "", "", ""), strict=True))
    async with conn.cursor(row_factory=class_row(DatasetView)) as cursor:
        await cursor.execute(_VIEW, {"org_id": org_id, **vars(which), **position, "limit": limit})
        return await cursor.fetchall()


async def get(conn: Conn, org_id: UUID, name: str) -> DatasetView:
    """One published dataset. Raises NotFound."""
    found = await listing(conn, org_id, DatasetFilter(name=name), limit=1)
    if not found:
        raise NotFound(f"no published dataset {name!r}; `trace datasets` lists them")
    return found[0]


_COLUMNS = """
SELECT coalesce(analysed_columns, columns) FROM dataset_versions
 WHERE dataset_version = %(dataset_version)s
"""


async def told_columns(conn: Conn, dataset_version: UUID) -> list[dict[str, str]]:
    """What the deploy of a generation found or said its columns to be; none if nobody looked."""
    row = await (await conn.execute(_COLUMNS, {"dataset_version": dataset_version})).fetchone()
    return [{"name": c["name"], "type": c["type"]} for c in row[0]] if row and row[0] else []


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
