"""What was made from what: partitions, through tasks and attempts, up and down."""

from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn

MOST = 1000
_DEEPEST = 32


@dataclass(frozen=True)
class Link:
    """A partition on the way, how far away it is, and what it was made from or went into."""

    depth: int
    dataset: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    """`*`: the whole dataset, as it stood."""
    task_id: UUID | None
    """Who made what was read; None: it was rewritten while the reader ran."""
    attempt: int | None
    is_current: bool
    """Still what its dataset shows."""
    via_version: UUID
    via_key: str


_NAMED: LiteralString = """
SELECT f.depth, n.name AS dataset, g.name AS dag, j.name AS job, d.output_name AS output,
       d.dataset_uuid, f.version AS dataset_version, f.key AS partition_key, f.task_id, f.attempt,
       f.key = '*' OR EXISTS (
           SELECT FROM partitions p WHERE p.dataset_version = f.version
              AND p.partition_key = f.key AND p.task_id = f.task_id) AS is_current,
       f.via_version, f.via_key
  FROM found f
  JOIN dataset_versions v ON v.dataset_version = f.version
  JOIN dataset_producers d ON d.dataset_uuid = v.dataset_uuid
  JOIN jobs j ON j.job_id = d.job_id
  JOIN dags g ON g.dag_id = j.dag_id
  LEFT JOIN publications n ON n.dataset_uuid = d.dataset_uuid
 ORDER BY f.depth, g.name, j.name, d.output_name, length(f.key), f.key LIMIT %(limit)s
"""
_UP: LiteralString = (
    """
WITH RECURSIVE found AS (
    SELECT 1 AS depth, l.input_version AS version, l.input_key AS key, l.input_task_id AS task_id,
           l.input_attempt AS attempt, l.dataset_version AS via_version, l.partition_key AS via_key
      FROM partition_inputs l
      JOIN partitions p ON p.dataset_version = l.dataset_version
       AND p.partition_key = l.partition_key AND p.task_id = l.task_id
     WHERE l.dataset_version = %(dataset_version)s AND l.partition_key = %(partition_key)s
     UNION
    SELECT f.depth + 1, l.input_version, l.input_key, l.input_task_id, l.input_attempt,
           l.dataset_version, l.partition_key
      FROM found f
      JOIN partition_inputs l ON l.dataset_version = f.version AND l.partition_key = f.key
       AND l.task_id = f.task_id
     WHERE f.depth < %(deepest)s
)"""
    + _NAMED
)
_DOWN: LiteralString = (
    """
WITH RECURSIVE found AS (
    SELECT 1 AS depth, p.dataset_version AS version, p.partition_key AS key, p.task_id, p.attempt,
           l.input_version AS via_version, l.input_key AS via_key
      FROM partition_inputs l
      JOIN partitions p ON p.dataset_version = l.dataset_version
       AND p.partition_key = l.partition_key AND p.task_id = l.task_id
     WHERE l.input_version = %(dataset_version)s AND l.input_key IN (%(partition_key)s, '*')
     UNION
    SELECT f.depth + 1, p.dataset_version, p.partition_key, p.task_id, p.attempt, l.input_version,
           l.input_key
      FROM found f
      JOIN partition_inputs l ON l.input_version = f.version AND l.input_key IN (f.key, '*')
      JOIN partitions p ON p.dataset_version = l.dataset_version
       AND p.partition_key = l.partition_key AND p.task_id = l.task_id
     WHERE f.depth < %(deepest)s
)"""
    + _NAMED
)


async def of_partition(
    conn: Conn, dataset_version: UUID, partition_key: str
) -> tuple[list[Link], list[Link]]:
    """What a partition was made from, and what was made from it; the nearest first."""
    values = {
        "dataset_version": dataset_version,
        "partition_key": partition_key,
        "deepest": _DEEPEST,
        "limit": MOST,
    }
    found: list[list[Link]] = []
    for query in (_UP, _DOWN):
        async with conn.cursor(row_factory=class_row(Link)) as cursor:
            await cursor.execute(query, values)
            found.append(await cursor.fetchall())
    return found[0], found[1]


@dataclass(frozen=True)
class Maker:
    """The attempt that made a partition."""

    partition_key: str
    range_start: int | None
    range_end: int | None
    task_id: UUID
    attempt: int


_MAKER = """
SELECT partition_key, range_start, range_end, task_id, attempt FROM partitions
 WHERE dataset_version = %(dataset_version)s AND partition_key = %(partition_key)s
"""


async def maker(conn: Conn, dataset_version: UUID, partition_key: str) -> Maker:
    """Who made a committed partition. Raises NotFound."""
    values = {"dataset_version": dataset_version, "partition_key": partition_key}
    async with conn.cursor(row_factory=class_row(Maker)) as cursor:
        await cursor.execute(_MAKER, values)
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"no partition {partition_key!r} is committed; `trace dataset` lists them")
    return found


@dataclass(frozen=True)
class Neighbour:
    """A dataset that another is made from, or that is made from it."""

    depth: int
    dataset: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID


_GRAPH: LiteralString = """
SELECT min(f.depth) AS depth, n.name AS dataset, g.name AS dag, j.name AS job,
       d.output_name AS output, d.dataset_uuid
  FROM found f
  JOIN dataset_producers d ON d.dataset_uuid = f.dataset_uuid
  JOIN jobs j ON j.job_id = d.job_id
  JOIN dags g ON g.dag_id = j.dag_id
  LEFT JOIN publications n ON n.dataset_uuid = d.dataset_uuid
 GROUP BY n.name, g.name, j.name, d.output_name, d.dataset_uuid
 ORDER BY depth, g.name, j.name, d.output_name
"""
_DATASETS_UP: LiteralString = (
    """
WITH RECURSIVE found AS (
    SELECT 1 AS depth, i.dataset_uuid
      FROM dataset_producers d JOIN jobs j ON j.job_id = d.job_id
      JOIN job_inputs i ON i.revision_id = j.revision_id
     WHERE d.dataset_uuid = %(dataset_uuid)s
     UNION
    SELECT f.depth + 1, i.dataset_uuid
      FROM found f JOIN dataset_producers d ON d.dataset_uuid = f.dataset_uuid
      JOIN jobs j ON j.job_id = d.job_id
      JOIN job_inputs i ON i.revision_id = j.revision_id
     WHERE f.depth < %(deepest)s
)"""
    + _GRAPH
)
_DATASETS_DOWN: LiteralString = (
    """
WITH RECURSIVE found AS (
    SELECT 1 AS depth, o.dataset_uuid
      FROM job_inputs i JOIN jobs j ON j.revision_id = i.revision_id AND j.active
      JOIN job_outputs o ON o.revision_id = j.revision_id
     WHERE i.dataset_uuid = %(dataset_uuid)s
     UNION
    SELECT f.depth + 1, o.dataset_uuid
      FROM found f JOIN job_inputs i ON i.dataset_uuid = f.dataset_uuid
      JOIN jobs j ON j.revision_id = i.revision_id AND j.active
      JOIN job_outputs o ON o.revision_id = j.revision_id
     WHERE f.depth < %(deepest)s
)"""
    + _GRAPH
)


async def of_dataset(conn: Conn, dataset_uuid: UUID) -> tuple[list[Neighbour], list[Neighbour]]:
    """The datasets above and below one, as the live definitions have them."""
    found: list[list[Neighbour]] = []
    for query in (_DATASETS_UP, _DATASETS_DOWN):
        async with conn.cursor(row_factory=class_row(Neighbour)) as cursor:
            await cursor.execute(query, {"dataset_uuid": dataset_uuid, "deepest": _DEEPEST})
            found.append(await cursor.fetchall())
    return found[0], found[1]
