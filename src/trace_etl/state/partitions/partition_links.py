"""Links between verified partitions: each begins with the child of the last block before it."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from trace_etl.model.errors import BrokenLink
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn

# Neighbours that commit at the same time lock their common border, so that the later one sees the
# earlier one. Sorted, so that two completions cannot deadlock.
_LOCK_BORDERS = """
SELECT pg_advisory_xact_lock(hashtextextended(border, 0))
  FROM (SELECT DISTINCT concat(version, '/', block) AS border
          FROM unnest(%(versions)s::uuid[], %(starts)s::bigint[], %(ends)s::bigint[])
               AS n (version, first_block, last_block)
         CROSS JOIN LATERAL (VALUES (first_block), (last_block + 1)) AS b (block)
         ORDER BY border) AS borders
"""

# A neighbour that another task is about to replace is not compared now, but when that task commits. The same
# holds for a provisional neighbour, which is read again.
_FIND_BROKEN_LINK = """
SELECT p.partition_key, q.partition_key, q.range_start,
       p.verified ->> 'last_hash', p.verified -> 'endpoints',
       q.verified ->> 'first_parent_hash', q.verified -> 'endpoints',
       CASE WHEN n.is_later THEN p.partition_key ELSE q.partition_key END
  FROM (SELECT version, first_block - 1 AS last_block, first_block, true AS is_later
          FROM unnest(%(versions)s::uuid[], %(starts)s::bigint[]) AS s (version, first_block)
         UNION ALL
        SELECT version, last_block, last_block + 1, false
          FROM unnest(%(versions)s::uuid[], %(ends)s::bigint[]) AS e (version, last_block)) AS n
  JOIN dataset_versions v ON v.dataset_version = n.version
  JOIN partitions p ON p.dataset_version = n.version AND p.range_end = n.last_block
   AND overlaps_blocks(p, v.generation_no, n.last_block, n.last_block)
  JOIN partitions q ON q.dataset_version = n.version AND q.range_start = n.first_block
   AND overlaps_blocks(q, v.generation_no, n.first_block, n.first_block)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN n.is_later THEN p.range_start ELSE q.range_start END,
              CASE WHEN n.is_later THEN p.range_end ELSE q.range_end END,
              CASE WHEN n.is_later THEN p.verified ELSE q.verified END)
       AS o (range_start, range_end, verified)
 WHERE p.verified ->> 'last_hash' <> q.verified ->> 'first_parent_hash'
   AND NOT coalesce((o.verified ->> 'provisional')::boolean, false)
   AND NOT EXISTS (
       SELECT FROM tasks mine
         JOIN tasks t ON t.job_id = mine.job_id AND t.task_id <> mine.task_id
          AND t.status IN ('Queued', 'Running')
        WHERE mine.task_id = %(task_id)s
          AND t.range_start <= o.range_end AND t.range_end >= o.range_start)
 LIMIT 1
"""


async def check_links(conn: Conn, fence: Fence, ranges: Sequence[tuple[UUID, int, int]]) -> None:
    """Compare new partitions with their neighbours. Raises BrokenLink with the evidence."""
    row: tuple[Any, ...] | None = await (
        await conn.execute(_FIND_BROKEN_LINK, {"task_id": fence.task_id, **_split_columns(ranges)})
    ).fetchone()
    if row is None:
        return
    before, after, block, last_hash, first_endpoints, parent_hash, endpoints, committed = row
    raise BrokenLink(
        f"block {block}, parentHash: expected {last_hash} (the last block of partition {before}, from "
        f"{', '.join(first_endpoints)}), received {parent_hash} (partition {after}, from "
        f"{', '.join(endpoints)}): the endpoints serve different forks. If the committed partition "
        f"{committed} is the wrong one, invalidate it"
    )


async def lock_borders(conn: Conn, ranges: Sequence[tuple[UUID, int, int]]) -> None:
    """Wait for concurrent commits of neighbours. Call it before the commit of the partitions."""
    await conn.execute(_LOCK_BORDERS, _split_columns(ranges))


def _split_columns(ranges: Sequence[tuple[UUID, int, int]]) -> dict[str, Any]:
    return {
        "versions": [version for version, _, _ in ranges],
        "starts": [start for _, start, _ in ranges],
        "ends": [end for _, _, end in ranges],
    }
