"""Read datasets and their published names."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from trace_etl.api.body import Name
from trace_etl.api.user.data.datasets import DatasetItem
from trace_etl.dag.operators import COLUMN_KEEPERS
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import JobNameFilter, fetch_all, fetch_dicts


@dataclass(frozen=True)
class DatasetFilter(JobNameFilter):
    name: Name | None = None
    published: bool | None = None


# Totals and the ends of indexes: a million partitions are not read.
_LIST = """
WITH page AS (
    SELECT p.name, g.name AS dag, j.name AS job, w.output_name AS output, d.dataset_uuid,
           d.dataset_version, p.write_mode, p.read_roles, p.hot_dataset_uuid
      FROM datasets d JOIN dataset_producers w USING (dataset_uuid)
      JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
      LEFT JOIN publications p USING (dataset_uuid)
     WHERE d.org_id = %(org_id)s AND j.active AND d.dataset_version IS NOT NULL
       AND (%(name)s::text IS NULL OR p.name = %(name)s)
       AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
       AND (%(job)s::text IS NULL OR j.name = %(job)s)
       AND (%(published)s::boolean IS NULL OR (p.name IS NOT NULL) = %(published)s)
       -- A buffered dataset has several producers. The list shows the first one.
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
SELECT page.name, dag, job, output, dataset_uuid, dataset_version, write_mode, read_roles, c.*,
       output_of(hot_dataset_uuid) AS hot, producers_of(dataset_uuid) AS producers,
       first_block(dataset_version) AS range_start, last_block(dataset_version) AS range_end
  FROM page CROSS JOIN LATERAL (
       SELECT coalesce(sum(t.partitions), 0)::bigint AS partitions,
              coalesce(sum(t.row_count), 0)::bigint AS row_count,
              coalesce(sum(t.byte_count), 0)::bigint AS byte_count,
              (SELECT committed_at FROM partitions p
                WHERE p.dataset_version = page.dataset_version
                ORDER BY commit_xid DESC LIMIT 1) AS updated_at
         FROM generation_totals t WHERE t.dataset_version = page.dataset_version
  ) c
 ORDER BY (page.name IS NULL)::int, coalesce(page.name, ''), dag, job, output
"""


async def list_datasets(
    conn: Conn,
    org_id: UUID,
    filters: DatasetFilter,
    *,
    after: tuple[Any, ...] | None = None,
    limit: int,
) -> list[DatasetItem]:
    """List one page of the datasets of active jobs: published datasets first, by name."""
    names = ("rank", "after_name", "after_dag", "after_job", "after_output")
    position = dict(zip(names, after or (-1, "", "", "", ""), strict=True))
    return await fetch_all(
        conn, DatasetItem, _LIST, {"org_id": org_id, **vars(filters), **position, "limit": limit}
    )


async def get_dataset(conn: Conn, org_id: UUID, name: str) -> DatasetItem:
    """Read one published dataset. Raises NotFound."""
    matches = await list_datasets(conn, org_id, DatasetFilter(name=name), limit=1)
    if not matches:
        raise NotFound(f"no published dataset {name!r}; `trace datasets` lists them")
    return matches[0]


# The ends of an index instead of counts.
_OUTLINE = """
SELECT p.name, g.name AS dag, j.name AS job, w.output_name AS output, d.dataset_uuid,
       d.dataset_version, p.write_mode, p.read_roles,
       output_of(p.hot_dataset_uuid) AS hot, producers_of(d.dataset_uuid) AS producers,
       first_block(d.dataset_version) AS range_start,
       last.range_end, last.committed_at AS updated_at, last.columns
  FROM publications p JOIN datasets d USING (dataset_uuid)
  JOIN dataset_producers w ON w.dataset_uuid = d.dataset_uuid
  JOIN jobs j ON j.job_id = w.job_id AND j.active JOIN dags g ON g.dag_id = j.dag_id
  LEFT JOIN LATERAL (
       (SELECT range_end, committed_at, columns FROM partitions q
         WHERE q.dataset_version = d.dataset_version AND range_start IS NOT NULL
         ORDER BY range_start DESC LIMIT 1)
        UNION ALL
       (SELECT NULL, committed_at, columns FROM partitions q
         WHERE q.dataset_version = d.dataset_version AND range_start IS NULL LIMIT 1)
        LIMIT 1) last ON true
 WHERE d.org_id = %(org_id)s AND p.name = %(name)s AND d.dataset_version IS NOT NULL
 ORDER BY g.name, j.name, w.output_name LIMIT 1
"""


async def get_outline(conn: Conn, org_id: UUID, name: str) -> dict[str, Any]:
    """Read one published dataset without counting, as fields of `DatasetOutline`. Raises NotFound.

    `columns` are those of its last partition; None without partitions.
    """
    rows = await fetch_dicts(conn, _OUTLINE, {"org_id": org_id, "name": name})
    if not rows:
        raise NotFound(f"no published dataset {name!r}; `trace datasets` lists them")
    return rows[0]


_COLUMNS = """
SELECT coalesce(analysed_columns, columns) FROM dataset_versions
 WHERE dataset_version = %(dataset_version)s
"""


async def get_planned_columns(conn: Conn, dataset_version: UUID) -> list[dict[str, str]]:
    """Return the columns that a deploy declared or found for a generation; empty if unknown."""
    row = await (await conn.execute(_COLUMNS, {"dataset_version": dataset_version})).fetchone()
    return [{"name": c["name"], "type": c["type"]} for c in row[0]] if row and row[0] else []


# Operators that keep columns are followed upstream, to the operator that made the columns.
_DESCRIPTION = """
WITH RECURSIVE origin AS (
    SELECT r.revision_id, r.operator, w.output_name, 1 AS depth
      FROM dataset_producers w JOIN jobs j USING (job_id)
      JOIN job_revisions r ON r.revision_id = coalesce(j.revision_id, j.building_revision_id)
     WHERE w.dataset_uuid = %(dataset_uuid)s
    UNION ALL
    SELECT r.revision_id, r.operator, w.output_name, o.depth + 1
      FROM origin o JOIN job_inputs i ON i.revision_id = o.revision_id AND i.input_index = 0
      JOIN dataset_producers w USING (dataset_uuid) JOIN jobs j USING (job_id)
      JOIN job_revisions r ON r.revision_id = coalesce(j.revision_id, j.building_revision_id)
     WHERE o.operator = ANY(%(keepers)s) AND o.depth < 10
)
SELECT p.description, p.columns, o.operator, o.output_name
  FROM publications p LEFT JOIN origin o ON true
 WHERE p.dataset_uuid = %(dataset_uuid)s ORDER BY o.depth DESC LIMIT 1
"""


@dataclass(frozen=True)
class DatasetDescription:
    """What a published dataset says about its columns, and the output that made them."""

    description: str
    columns: list[dict[str, Any]] | None
    operator: str | None
    output_name: str | None


async def get_description(conn: Conn, dataset_uuid: UUID) -> DatasetDescription:
    """Read the description of a published dataset."""
    values = {"dataset_uuid": dataset_uuid, "keepers": sorted(COLUMN_KEEPERS)}
    found = await fetch_all(conn, DatasetDescription, _DESCRIPTION, values)
    return found[0] if found else DatasetDescription("", None, None, None)


_FIND_UUID = "SELECT dataset_uuid FROM publications WHERE org_id = %(org_id)s AND name = %(name)s"


async def find_uuid(conn: Conn, org_id: UUID, name: str) -> UUID | None:
    """Return the dataset with a published name, or None."""
    row = await (await conn.execute(_FIND_UUID, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


@dataclass(frozen=True)
class PublishedDataset:
    """A published name with its dataset, and the committed partitions of its current generation."""

    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    read_roles: list[str] | None
    hot_dataset_uuid: UUID | None
    hot_dataset_version: UUID | None
    columns: list[dict[str, str]] | None
    """The columns of the last partition. None without partitions."""
    partitions: list[tuple[int | None, int | None, dict[str, Any]]]
    """The first and the last block of each partition, and its storage reference."""


# One statement, so that all partitions are those of one moment. The database role of the Query Service
# may read these tables only: no jobs and no tasks.
_PUBLISHED = """
SELECT m.role, p.name, d.dataset_uuid, d.dataset_version, p.read_roles, p.hot_dataset_uuid,
       h.dataset_version AS hot_dataset_version,
       (SELECT columns FROM partitions WHERE dataset_version = d.dataset_version
         ORDER BY range_start DESC, partition_key DESC LIMIT 1) AS columns,
       (SELECT coalesce(json_agg(json_build_array(range_start, range_end, storage_ref)
                                 ORDER BY range_start, partition_key), '[]')::text
          FROM partitions WHERE dataset_version = d.dataset_version) AS partitions
  FROM memberships m
  LEFT JOIN publications p ON p.org_id = m.org_id
        AND p.name IN (SELECT json_array_elements_text(%(names)s::json))
  LEFT JOIN datasets d USING (dataset_uuid)
  LEFT JOIN datasets h ON h.dataset_uuid = p.hot_dataset_uuid
 WHERE m.org_id = %(org_id)s::uuid AND m.user_name = %(user)s AND m.disabled_at IS NULL
"""
_PUBLISHED_NAMES = "SELECT name FROM publications WHERE org_id = %(org_id)s ORDER BY name"


async def list_published(
    conn: Conn, org_id: UUID, user: str, names: list[str]
) -> tuple[str | None, list[PublishedDataset]]:
    """Return the role of a user, and the dataset of each given name; unpublished names are left out.

    The role is None for a user who is unknown or disabled.
    """
    values = {"org_id": org_id.hex, "user": user, "names": orjson.dumps(names).decode()}
    rows = await conn.rows(_PUBLISHED, values, tuple)
    datasets = [
        PublishedDataset(*found, partitions=orjson.loads(partitions))
        for _, *found, partitions in rows
        if found[0] is not None
    ]
    return rows[0][0] if rows else None, datasets


async def list_published_names(conn: Conn, org_id: UUID) -> list[str]:
    cursor = await conn.execute(_PUBLISHED_NAMES, {"org_id": org_id})
    return [row[0] for row in await cursor.fetchall()]


_READ_ROLES = "SELECT name, read_roles FROM publications WHERE org_id = %(org_id)s ORDER BY name"


async def list_read_roles(conn: Conn, org_id: UUID) -> dict[str, list[str] | None]:
    """Return the `read_roles` of every published dataset; None: every role may read it."""
    cursor = await conn.execute(_READ_ROLES, {"org_id": org_id})
    return {row[0]: row[1] for row in await cursor.fetchall()}
