"""Moving partition pointers: forward only, with lineage, and with word of every rewrite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.errors import ExclusionViolation
from psycopg.types.json import Jsonb

from trace_etl.model.errors import Forbidden, PartitionOverlap
from trace_etl.model.scope import Range
from trace_etl.model.task import Fence
from trace_etl.policy.commit_decision import Standing, Verdict, verdict
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class NewPartition:
    dataset_version: UUID
    partition_key: str
    range_start: int | None
    range_end: int | None
    storage_ref: dict[str, Any]
    row_count: int
    byte_count: int
    columns: list[dict[str, str]]

    @property
    def span(self) -> Range | None:
        if self.range_start is None or self.range_end is None:
            return None
        return Range(self.range_start, self.range_end)


class Raced(Exception):
    """Somebody committed an overlapping partition between the look and the move: look again."""


@dataclass(frozen=True)
class _Scene:
    """The task that publishes, and what stands where it wants to."""

    span: Range | None
    follows: bool
    """It reads up to a cursor, and no certain blocks."""
    is_missed: bool
    """Something it read became invalid while it ran, and no other task answers for that."""
    standing: list[list[Standing]]


async def publish(conn: Conn, fence: Fence, given: Sequence[NewPartition]) -> list[NewPartition]:
    """Point partitions at an attempt's prefixes, in three statements at most, however many.

    What was made from newer inputs stays. Returns what is shown now. Raises PartitionOverlap,
    Forbidden, Raced.
    """
    new = _distinct(given)
    scene = await _look(conn, fence, new)
    shown: list[NewPartition] = []
    covered: list[tuple[UUID, str]] = []
    replacing: list[str] = []
    for item, standing in zip(new, scene.standing, strict=True):
        _require_inside(scene.span, item)
        match verdict(item.partition_key, item.span, standing, follows=scene.follows):
            case Verdict.OVERLAP:
                raise PartitionOverlap(_cut_through(item, standing))
            case Verdict.AGAIN:
                await conn.execute(_AGAIN, {"task_id": fence.task_id})
            case Verdict.SUPERSEDED:
                pass
            case Verdict.POINT:
                shown.append(item)
                others = {s.partition_key for s in standing} - {item.partition_key}
                covered += [(item.dataset_version, key) for key in sorted(others)]
                replacing += [f"{item.dataset_version}/{item.partition_key}"] if others else []
    if covered:
        gone = {"versions": [v for v, _ in covered], "keys": [key for _, key in covered]}
        await conn.execute(_REMOVE, gone)
    if shown:
        await _point(conn, fence, shown, replacing)
        if scene.is_missed:
            await conn.execute(_AGAIN, {"task_id": fence.task_id})
    return shown


def _cut_through(item: NewPartition, standing: Sequence[Standing]) -> str:
    there = ", ".join(sorted(s.partition_key for s in standing)[:3])
    return (
        f"blocks {item.partition_key} cut through a partition that is already committed ({there}); "
        "use the ranges it was split into, or one that covers them whole. If the job reads inputs "
        "that are cut differently, give what splits them one size, or use `update_strategy: append`"
    )


def _distinct(given: Sequence[NewPartition]) -> list[NewPartition]:
    """Of what one completion names twice, or covers itself, the last word."""
    kept: list[NewPartition] = []
    for item in given:
        kept = [k for k in kept if not _covers(item, k)]
        kept.append(item)
    return kept


def _covers(item: NewPartition, other: NewPartition) -> bool:
    if item.dataset_version != other.dataset_version:
        return False
    if item.partition_key == other.partition_key:
        return True
    mine, theirs = item.span, other.span
    if mine is None or theirs is None:
        return False
    return mine.start <= theirs.start and theirs.end <= mine.end


def _require_inside(span: Range | None, item: NewPartition) -> None:
    # A task of a range writes inside it: nobody's token covers its neighbours.
    mine = item.span
    if span is None or mine is None:
        return
    if mine.start < span.start or span.end < mine.end:
        raise Forbidden(f"blocks {item.partition_key} are not this task's to publish")


# Locked in one order, so that two completions over the same partitions cannot deadlock.
_LOOK = """
WITH mine AS (
    SELECT t.range_start, t.range_end, t.pinned_snapshot, t.job_id, t.revision_id,
           t.dataset_uuid, t.dataset_version, i.made_xid,
           t.cursor_value IS NOT NULL AND t.invalidation_id IS NULL AS follows
      FROM tasks t LEFT JOIN invalidations i ON i.invalidation_id = t.invalidation_id
     WHERE t.task_id = %(task_id)s
), standing AS (
    SELECT w.n, p.partition_key, p.range_start, p.range_end,
           read_later(p.read_snapshot, mine.pinned_snapshot) AS is_newer,
           coalesce(pg_visible_in_snapshot(mine.made_xid, p.read_snapshot), false) AS is_cured
      FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(starts)s::bigint[], %(ends)s::bigint[])
           WITH ORDINALITY AS w (dataset_version, partition_key, first, last, n)
      JOIN dataset_versions v ON v.dataset_version = w.dataset_version
      JOIN LATERAL (
           SELECT q.dataset_version, q.partition_key FROM partitions q
            WHERE q.dataset_version = w.dataset_version AND q.partition_key = w.partition_key
            UNION
           SELECT q.dataset_version, q.partition_key FROM partitions q
            WHERE w.first IS NOT NULL AND q.dataset_version = w.dataset_version
              AND overlaps_blocks(q, v.generation_no, w.first, w.last)
      ) q ON true
      JOIN partitions p
        ON p.dataset_version = q.dataset_version AND p.partition_key = q.partition_key
     CROSS JOIN mine
     ORDER BY p.dataset_version, p.partition_key
       FOR UPDATE OF p
)
SELECT mine.range_start, mine.range_end, s.n, s.partition_key, s.range_start, s.range_end,
       s.is_newer, s.is_cured,
       EXISTS (
           SELECT FROM job_inputs i
             JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
             JOIN invalidations n
               ON n.dataset_version
                  = input_generation(i, d, mine.dataset_uuid, mine.dataset_version)
              AND n.made_xid >= pg_snapshot_xmin(mine.pinned_snapshot)
              AND n.once_key NOT LIKE 'doubt:%%' IS NOT FALSE  -- its rewrite will tell
            WHERE i.revision_id = mine.revision_id
              AND NOT pg_visible_in_snapshot(n.made_xid, mine.pinned_snapshot)
              AND scopes_overlap(n.range_start, n.range_end, mine.range_start, mine.range_end)
              AND NOT EXISTS (
                  SELECT FROM invalidation_consumers c JOIN tasks t ON t.task_id = c.task_id
                   WHERE c.invalidation_id = n.invalidation_id AND c.job_id = mine.job_id
                     AND scopes_overlap(t.range_start, t.range_end,
                                        mine.range_start, mine.range_end))
       ) AS is_missed, mine.follows
  FROM mine LEFT JOIN standing s ON true
"""


async def _look(conn: Conn, fence: Fence, new: list[NewPartition]) -> _Scene:
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in new],
        "keys": [n.partition_key for n in new],
        "starts": [n.range_start for n in new],
        "ends": [n.range_end for n in new],
    }
    rows: list[tuple[Any, ...]] = await (await conn.execute(_LOOK, values)).fetchall()
    standing = [list[Standing]() for _ in new]
    for _, _, n, key, start, end, newer, cured, *_ in rows:
        if n is not None:
            standing[int(n) - 1].append(Standing(key, _span(start, end), newer, cured))
    first = rows[0]  # the task is there: its completion was accepted a moment ago
    return _Scene(_span(first[0], first[1]), first[9], first[8], standing)


def _span(start: int | None, end: int | None) -> Range | None:
    return None if start is None or end is None else Range(start, end)


_REMOVE = """
WITH gone AS (
    DELETE FROM partitions p USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
     WHERE p.dataset_version = g.v AND p.partition_key = g.k
)
DELETE FROM partition_inputs l USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
 WHERE l.dataset_version = g.v AND l.partition_key = g.k
"""

# The same scope once more, by the same definition: what was read is older than a part of what
# stands, or became invalid between the claim's snapshot and its commit, unseen by the routing.
_AGAIN = """
SELECT task_id FROM create_tasks(ARRAY(
    SELECT new_task(org_id, job_id, revision_id, runtime, bulk, 'again:' || task_id, max_attempts,
                    max_concurrency, timeout_seconds, lease_seconds, dataset_uuid,
                    dataset_version, partition_key, range_start, range_end, cursor_value,
                    invalidation_id)
      FROM tasks WHERE task_id = %(task_id)s))
"""

# A pointer moves from an older reading to a newer one and never back: the row itself decides, so
# no two completions can pass each other. A pointer that moved, or that took the place of others, is
# a rewrite, and whoever read what was there is told.
_POINT = """
WITH mine AS (
    SELECT task_id, attempt, org_id, revision_id, range_start, range_end, pinned_snapshot,
           dataset_uuid, dataset_version
      FROM tasks WHERE task_id = %(task_id)s
), pointed AS (
    INSERT INTO partitions AS p (
           dataset_version, generation_no, partition_key, range_start, range_end, storage_ref,
           row_count, byte_count, columns, task_id, attempt, read_snapshot)
    SELECT v.dataset_version, v.generation_no, n.partition_key, n.range_start, n.range_end,
           n.storage_ref, n.row_count, n.byte_count, n.columns, mine.task_id, mine.attempt,
           mine.pinned_snapshot
      FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(starts)s::bigint[], %(ends)s::bigint[],
                  %(refs)s::jsonb[], %(rows)s::bigint[], %(bytes)s::bigint[], %(columns)s::jsonb[])
           AS n (dataset_version, partition_key, range_start, range_end, storage_ref, row_count,
                 byte_count, columns)
      JOIN dataset_versions v ON v.dataset_version = n.dataset_version
     CROSS JOIN mine
    ON CONFLICT (dataset_version, partition_key) DO UPDATE
       SET storage_ref = EXCLUDED.storage_ref, row_count = EXCLUDED.row_count,
           byte_count = EXCLUDED.byte_count, columns = EXCLUDED.columns,
           task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt,
           read_snapshot = EXCLUDED.read_snapshot, commit_xid = EXCLUDED.commit_xid,
           committed_at = now()
     WHERE NOT read_later(p.read_snapshot, EXCLUDED.read_snapshot)
    RETURNING p.dataset_version, p.partition_key, p.range_start, p.range_end,
              p.xmax::text <> '0'
              OR concat(p.dataset_version, '/', p.partition_key) = ANY(%(replacing)s::text[])
              AS rewritten
), made_from AS (
    INSERT INTO partition_inputs AS l (
           dataset_version, partition_key, input_version, input_key, input_task_id, input_attempt,
           task_id, attempt)
    SELECT DISTINCT ON (o.dataset_version, o.partition_key, v.dataset_version, p.partition_key)
           o.dataset_version, o.partition_key, v.dataset_version, p.partition_key,
           p.task_id, p.attempt, mine.task_id, mine.attempt
      FROM mine
      JOIN job_inputs i ON i.revision_id = mine.revision_id
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
      JOIN dataset_versions v
        ON v.dataset_version = input_generation(i, d, mine.dataset_uuid, mine.dataset_version)
     CROSS JOIN LATERAL (
           SELECT '*' AS partition_key, NULL::uuid AS task_id, NULL::int AS attempt
            WHERE mine.range_start IS NULL
            UNION ALL
           SELECT q.partition_key, CASE WHEN s.seen THEN q.task_id END,
                  CASE WHEN s.seen THEN q.attempt END
             FROM partitions q
            CROSS JOIN LATERAL (
                  SELECT pg_visible_in_snapshot(q.commit_xid, mine.pinned_snapshot)) AS s (seen)
            WHERE mine.range_start IS NOT NULL AND q.dataset_version = v.dataset_version
              AND overlaps_blocks(q, v.generation_no, mine.range_start, mine.range_end)
     ) p
     CROSS JOIN pointed o
    ON CONFLICT (dataset_version, partition_key, input_version, input_key) DO UPDATE
       SET input_task_id = EXCLUDED.input_task_id, input_attempt = EXCLUDED.input_attempt,
           task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt
), told AS (
    INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, partition_key,
                               range_start, range_end, reason, once_key, made_by, task_id,
                               attempt)
    SELECT mine.org_id, v.dataset_uuid, o.dataset_version, 'partition', o.partition_key,
           o.range_start, o.range_end, 'rewritten', 'rewritten:' || o.partition_key,
           'task:' || mine.task_id, mine.task_id, mine.attempt
      FROM pointed o JOIN dataset_versions v ON v.dataset_version = o.dataset_version
     CROSS JOIN mine
     WHERE o.rewritten
    RETURNING invalidation_id
)
SELECT count(*) FROM enqueue(ARRAY(
    SELECT outbox_entry('route_invalidation', invalidation_id) FROM told))
"""


async def _point(conn: Conn, fence: Fence, new: list[NewPartition], replacing: list[str]) -> None:
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in new],
        "keys": [n.partition_key for n in new],
        "starts": [n.range_start for n in new],
        "ends": [n.range_end for n in new],
        "refs": [Jsonb(n.storage_ref) for n in new],
        "rows": [n.row_count for n in new],
        "bytes": [n.byte_count for n in new],
        "columns": [Jsonb(n.columns) for n in new],
        "replacing": replacing,
    }
    try:
        await conn.execute(_POINT, values)
    except ExclusionViolation as error:
        raise Raced from error
