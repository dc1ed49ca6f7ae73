"""Count the partitions of a generation by block, for a map of a million partitions."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.user.data.datasets import GenerationState
from trace_etl.api.user.data.partition_map import (
    MAX_LISTED,
    MapHot,
    MapInvalidation,
    MapPartition,
    MapTasks,
)
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one


@dataclass(frozen=True)
class Generation:
    dataset_uuid: UUID
    dataset_version: UUID
    state: GenerationState


# Not `datasets.get_dataset`, which counts all partitions.
_FIND = """
SELECT v.dataset_uuid, v.dataset_version,
       CASE v.dataset_version WHEN d.dataset_version THEN 'current'
                              WHEN d.building_version THEN 'building' ELSE 'old' END AS state
  FROM publications p JOIN datasets d USING (dataset_uuid)
  JOIN dataset_versions v USING (dataset_uuid)
 WHERE d.org_id = %(org_id)s AND p.name = %(name)s
   AND v.dataset_version = coalesce(%(dataset_version)s, d.dataset_version)
"""


async def find_generation(
    conn: Conn, org_id: UUID, name: str, dataset_version: UUID | None
) -> Generation:
    """Find a generation of a published dataset; the current one by default. Raises NotFound."""
    values = {"org_id": org_id, "name": name, "dataset_version": dataset_version}
    found = await fetch_one(conn, Generation, _FIND, values)
    if found is None:
        which = f" with the generation {dataset_version}" if dataset_version else ""
        raise NotFound(f"no published dataset {name!r}{which}; `trace datasets` lists them")
    return found


_EXTENT = """
SELECT first_block(%(dataset_version)s), last_block(%(dataset_version)s),
       (SELECT count(*) FROM partitions WHERE dataset_version = %(dataset_version)s
           AND range_start IS NULL)
"""


async def get_extent(conn: Conn, dataset_version: UUID) -> tuple[int | None, int | None, int]:
    """Return the first and last block of a generation, and its partitions without a range."""
    row = await (await conn.execute(_EXTENT, {"dataset_version": dataset_version})).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


@dataclass(frozen=True)
class Window:
    """A range of blocks, in buckets of equal width."""

    start: int
    end: int
    buckets: int

    @property
    def width(self) -> int:
        return self.end - self.start + 1

    @property
    def values(self) -> dict[str, int]:
        return {"start": self.start, "end": self.end, "buckets": self.buckets, "width": self.width}

    def bound(self, bucket: int) -> int:
        """Return the first block of a bucket."""
        return self.start + bucket * self.width // self.buckets


# One range of the index per bucket: cheaper than one aggregation by a computed bucket, and the
# partition that reaches into a bucket from the left is found at its edge.
_COUNT = """
SELECT b.number, c.partitions,
       c.blocks - greatest(0, c.last - b.until + 1)
       + coalesce((SELECT greatest(0, least(p.range_end, b.until - 1) - b.first + 1)
                     FROM partitions p
                    WHERE p.dataset_version = %(dataset_version)s AND p.range_start < b.first
                    ORDER BY p.range_start DESC LIMIT 1), 0) AS blocks
  FROM (SELECT n AS number, %(start)s + n * %(width)s::bigint / %(buckets)s AS first,
               %(start)s + (n + 1) * %(width)s::bigint / %(buckets)s AS until
          FROM generate_series(0, %(buckets)s::bigint - 1) n) b
 CROSS JOIN LATERAL (
       SELECT count(*) AS partitions,
              coalesce(sum(p.range_end - p.range_start + 1), 0)::bigint AS blocks,
              coalesce(max(p.range_end), 0) AS last
         FROM partitions p
        WHERE p.dataset_version = %(dataset_version)s
          AND p.range_start >= b.first AND p.range_start < b.until) c
 ORDER BY b.number
"""


async def count_partitions(
    conn: Conn, dataset_version: UUID, window: Window
) -> tuple[list[int], list[int]]:
    """Return the partitions that begin in each bucket, and the blocks of it that are covered."""
    values = {"dataset_version": dataset_version, **window.values}
    rows = await (await conn.execute(_COUNT, values)).fetchall()
    return [row[1] for row in rows], [row[2] for row in rows]


# Stale: an input is not the one that this partition was made from. '*' is the whole input, whose
# replacement is recorded as an invalidation.
_LIST = """
SELECT p.partition_key, p.range_start AS start, p.range_end AS end, p.row_count, p.byte_count,
       p.task_id, p.attempt, p.committed_at,
       EXISTS (SELECT FROM partition_inputs i
                WHERE i.dataset_version = p.dataset_version AND i.partition_key = p.partition_key
                  AND i.task_id = p.task_id AND i.input_key <> '*'
                  AND NOT EXISTS (SELECT FROM partitions q
                                   WHERE q.dataset_version = i.input_version
                                     AND q.partition_key = i.input_key
                                     AND q.task_id = i.input_task_id)) AS is_stale
  FROM partitions p
 WHERE p.dataset_version = %(dataset_version)s
   AND p.range_start >= coalesce((SELECT range_start FROM partitions
                                   WHERE dataset_version = %(dataset_version)s
                                     AND range_start <= %(start)s AND range_end >= %(start)s
                                   ORDER BY range_start DESC LIMIT 1), %(start)s)
   AND p.range_start <= %(end)s
 ORDER BY p.range_start LIMIT %(limit)s
"""


async def list_window(
    conn: Conn, dataset_version: UUID, window: Window
) -> list[MapPartition] | None:
    """List the partitions of a window, by block; None if there are too many."""
    values = {"dataset_version": dataset_version, **window.values, "limit": MAX_LISTED + 1}
    listed = await fetch_all(conn, MapPartition, _LIST, values)
    return listed if len(listed) <= MAX_LISTED else None


# Only partitions whose inputs were replaced can be stale, so the replacements are read, not a million
# partitions. Each is then compared as in the list.
_STALE = """
WITH sources AS (
    SELECT DISTINCT coalesce(i.dataset_version, d.dataset_version) AS dataset_version
      FROM job_outputs o JOIN job_inputs i USING (revision_id)
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
     WHERE o.dataset_version = %(dataset_version)s AND i.reads
), replaced AS (
    SELECT v.dataset_version, v.partition_key
      FROM sources s CROSS JOIN LATERAL (
           SELECT dataset_version, partition_key FROM invalidations
            WHERE dataset_version = s.dataset_version AND once_key LIKE 'rewritten:%%'
            ORDER BY made_xid DESC LIMIT %(limit)s) v
), stale AS (
    SELECT DISTINCT p.partition_key, p.range_start
      FROM replaced r
      JOIN partition_inputs i ON i.input_version = r.dataset_version
       AND i.input_key = r.partition_key AND i.dataset_version = %(dataset_version)s
      JOIN partitions p ON p.dataset_version = i.dataset_version
       AND p.partition_key = i.partition_key AND p.task_id = i.task_id
     WHERE p.range_start BETWEEN %(start)s AND %(end)s
       AND NOT EXISTS (SELECT FROM partitions q
                        WHERE q.dataset_version = i.input_version AND q.partition_key = i.input_key
                          AND q.task_id = i.input_task_id)
)
SELECT ((range_start - %(start)s) * %(buckets)s::bigint / %(width)s)::int, count(*)
  FROM stale GROUP BY 1
"""
_MAX_REPLACED = 10_000


async def count_stale(conn: Conn, dataset_version: UUID, window: Window) -> list[int]:
    """Return the partitions that begin in each bucket and whose inputs were replaced since."""
    values = {"dataset_version": dataset_version, **window.values, "limit": _MAX_REPLACED}
    counts = dict(await (await conn.execute(_STALE, values)).fetchall())
    return [counts.get(bucket, 0) for bucket in range(window.buckets)]


# The table with the newest rows of a name, or the dataset itself if it is a table. The end of its delivery
# log is the block up to which readers see it.
_HOT = """
SELECT g.name AS dag, j.name AS job, d.output_name AS output,
       coalesce(%(last)s::bigint + 1, (r.config ->> 'start_block')::bigint, 0) AS start,
       h.cursor_value AS end, d.dataset_uuid, d.dataset_version
  FROM publications p
  JOIN datasets d ON d.dataset_uuid = coalesce(p.hot_dataset_uuid, p.dataset_uuid)
  JOIN delivery_heads h ON h.dataset_uuid = d.dataset_uuid AND h.dataset_version = d.dataset_version
  JOIN jobs j ON j.job_id = d.job_id JOIN dags g ON g.dag_id = j.dag_id
  JOIN job_revisions r ON r.revision_id = j.revision_id
 WHERE p.dataset_uuid = %(dataset_uuid)s AND h.cursor_value IS NOT NULL
   AND (p.hot_dataset_uuid IS NOT NULL OR %(last)s::bigint IS NULL)
"""


async def get_hot(conn: Conn, dataset_uuid: UUID, last: int | None) -> MapHot | None:
    """Return the blocks after the last partition that readers see in a hot table."""
    hot = await fetch_one(conn, MapHot, _HOT, {"dataset_uuid": dataset_uuid, "last": last})
    return hot if hot is not None and hot.start <= hot.end else None


# Each task is counted once, in the bucket of its first block within the window.
_TASKS = """
SELECT ((greatest(t.range_start, %(start)s) - %(start)s) * %(buckets)s::bigint / %(width)s)::int
           AS bucket,
       count(*) FILTER (WHERE t.status = 'Queued') AS queued,
       count(*) FILTER (WHERE t.status = 'Running') AS running,
       count(*) FILTER (WHERE t.status = 'Failed') AS failed
  FROM (SELECT range_start, range_end, status FROM tasks
         WHERE job_id IN (SELECT job_id FROM dataset_producers WHERE dataset_uuid = %(dataset_uuid)s)
           AND status IN ('Queued', 'Running')
         UNION ALL
        SELECT t.range_start, t.range_end, t.status FROM tasks t JOIN job_failures f USING (task_id)
         WHERE f.job_id IN (SELECT job_id FROM dataset_producers
                             WHERE dataset_uuid = %(dataset_uuid)s)) t
 WHERE t.range_start <= %(end)s AND t.range_end >= %(start)s
 GROUP BY 1 ORDER BY 1
"""


async def count_tasks(conn: Conn, dataset_uuid: UUID, window: Window) -> list[MapTasks]:
    """Count the queued, running and failed tasks of the jobs that write a dataset, by bucket."""
    return await fetch_all(conn, MapTasks, _TASKS, {"dataset_uuid": dataset_uuid, **window.values})


_INVALIDATIONS = """
SELECT i.invalidation_id, coalesce(i.range_start, p.range_start) AS start,
       coalesce(i.range_end, p.range_end) AS end, i.reason,
       i.is_reorganisation, i.made_at,
       i.routed_at IS NULL
       OR EXISTS (SELECT FROM invalidation_consumers c
                   WHERE c.invalidation_id = i.invalidation_id AND c.processed_at IS NULL) AS is_open
  FROM invalidations i
  LEFT JOIN partitions p ON p.dataset_version = i.dataset_version
   AND p.partition_key = i.partition_key
 WHERE i.dataset_version = ANY(%(versions)s)
   AND coalesce(i.range_start, p.range_start) <= %(end)s
   AND coalesce(i.range_end, p.range_end) >= %(start)s
 ORDER BY i.made_at DESC LIMIT 200
"""


async def list_invalidations(
    conn: Conn, versions: list[UUID], window: Window
) -> list[MapInvalidation]:
    """List the newest invalidations of generations in a window."""
    values = {"versions": versions, **window.values}
    return await fetch_all(conn, MapInvalidation, _INVALIDATIONS, values)
