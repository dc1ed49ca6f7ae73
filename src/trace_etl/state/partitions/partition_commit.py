"""Partition commits: point partitions at an attempt's output, record lineage and rewrites."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.errors import ExclusionViolation
from psycopg.types.json import Jsonb

from trace_etl.api.task.checks import CheckResult
from trace_etl.dag.operators import COLUMN_KEEPERS
from trace_etl.model.errors import Forbidden, PartitionOverlap
from trace_etl.model.scope import Range, make_range
from trace_etl.model.task import Fence
from trace_etl.policy.commit_decision import CommitDecision, ExistingPartition, decide_commit
from trace_etl.policy.kept_rows import RowSet, keeps_all_rows
from trace_etl.state.db.pool import Conn
from trace_etl.state.partitions import check_results, invalidations, kept_rows, partition_links
from trace_etl.state.partitions.invalidations import NewInvalidation
from trace_etl.state.partitions.new_partition import NewPartition


class ConcurrentCommit(Exception):
    """Another transaction committed an overlapping partition meanwhile. Retry the commit."""


@dataclass(frozen=True)
class _CommittingTask:
    """The committing task, and the committed partitions that its outputs overlap."""

    org_id: UUID
    partition_key: str | None
    span: Range | None
    is_refresh: bool
    follows: bool
    """The task reads up to a cursor, not a fixed range of blocks."""
    missed_invalidation: bool
    """An input became invalid while the task ran, and no other task processes the invalidation."""
    keeps_rows: bool
    """The operator writes the rows of its input unchanged."""
    has_checks: bool
    """The job has data checks."""
    existing: list[list[ExistingPartition]]
    """For each new partition, the committed partitions that share its key or its blocks."""


async def commit(
    conn: Conn,
    fence: Fence,
    outputs: Sequence[NewPartition],
    checks: Sequence[CheckResult] = (),
) -> list[NewPartition]:
    """Point partitions at an attempt's output. Returns the new partitions that readers see now.

    A committed partition that was made from newer inputs stays. Replacing a partition invalidates
    everything made from it. The number of statements does not depend on the number of partitions.
    Raises PartitionOverlap, BrokenLink, RowsChanged, Forbidden, ConcurrentCommit, and Invalid if a result of
    the job's data checks is missing or does not allow the commit.
    """
    new = _drop_covered(outputs)
    task = await _lock_existing(conn, fence, new)
    if task.has_checks or checks:
        names = [(item.dataset_version, item.partition_key) for item in outputs]
        await check_results.require_results(conn, fence, checks, names)
    visible: list[NewPartition] = []
    covered: list[tuple[UUID, str]] = []
    replaced: list[_Replaced] = []
    for item, existing in zip(new, task.existing, strict=True):
        _require_inside(task, item)
        match decide_commit(item.partition_key, item.span, existing, follows=task.follows):
            case CommitDecision.OVERLAP:
                raise PartitionOverlap(_describe_overlap(item, existing))
            case CommitDecision.RUN_AGAIN:
                await conn.execute(_RUN_AGAIN, {"task_id": fence.task_id})
            case CommitDecision.SUPERSEDED:
                pass
            case CommitDecision.COMMIT:
                visible.append(item)
                others = {e.partition_key for e in existing} - {item.partition_key}
                covered += [(item.dataset_version, key) for key in sorted(others)]
                replaced.append(_Replaced(existing, sorted(others)))
    rows = await _delete_covered(conn, covered) if covered else {}
    if task.keeps_rows and visible:
        visible = await kept_rows.prove_kept_rows(conn, fence, visible)
    linked = _list_linked(visible)
    if linked:
        await partition_links.lock_borders(conn, linked)
    moved = await _move_pointers(conn, fence, visible, replaced, rows) if visible else []
    if linked:
        await partition_links.check_links(conn, fence, linked)
    if len(moved) < len(outputs):
        await _note_uncommitted(conn, fence, outputs)
    if visible:
        await _record_checks(conn, fence, task, moved, covered, checks)
        await _record_lineage(conn, fence, moved)
        await _invalidate_rewritten(conn, fence, task.org_id, moved)
        if task.missed_invalidation:
            await conn.execute(_RUN_AGAIN, {"task_id": fence.task_id})
    if task.is_refresh:
        await conn.execute(_REFRESH_AGAIN, {"task_id": fence.task_id})
    return visible


async def _record_checks(
    conn: Conn,
    fence: Fence,
    task: _CommittingTask,
    moved: Sequence["_Moved"],
    covered: Sequence[tuple[UUID, str]],
    checks: Sequence[CheckResult],
) -> None:
    """Replace the results of the partitions that moved. New partitions of a job without checks have none."""
    replaced = [
        (m.dataset_version, m.partition_key) for m in moved if m.is_rewrite or task.has_checks
    ]
    if replaced or covered:
        await check_results.forget(conn, [*replaced, *covered])
    current = {(m.dataset_version, m.partition_key) for m in moved}
    results = [c for c in checks if (c.dataset_version, c.partition_key) in current]
    if results:
        await check_results.record(conn, fence, results, is_committed=True)


def _list_linked(items: Sequence[NewPartition]) -> list[tuple[UUID, int, int]]:
    """The ranges of partitions whose first and last block are known."""
    return [
        (item.dataset_version, item.span.start, item.span.end)
        for item in items
        if item.verified is not None and item.span is not None
    ]


def _describe_overlap(item: NewPartition, existing: Sequence[ExistingPartition]) -> str:
    keys = ", ".join(sorted(e.partition_key for e in existing)[:3])
    return (
        f"blocks {item.partition_key} overlap only a part of a committed partition ({keys}); publish "
        "exactly the committed ranges, or one range that covers them. If the inputs of the job have "
        "different partition sizes, use one `size` in the jobs that split them, or use "
        "`update_strategy: append`"
    )


def _drop_covered(outputs: Sequence[NewPartition]) -> list[NewPartition]:
    """Remove partitions that a later partition of the same completion covers."""
    remaining: list[NewPartition] = []
    for item in outputs:
        remaining = [other for other in remaining if not _covers(item, other)]
        remaining.append(item)
    return remaining


def _covers(item: NewPartition, other: NewPartition) -> bool:
    if item.dataset_version != other.dataset_version:
        return False
    if item.partition_key == other.partition_key:
        return True
    outer, inner = item.span, other.span
    if outer is None or inner is None:
        return False
    return outer.start <= inner.start and inner.end <= outer.end


def _require_inside(task: _CommittingTask, item: NewPartition) -> None:
    if task.span is None:
        is_inside = task.partition_key in (None, item.partition_key)
    else:
        span = item.span
        is_inside = span is not None and task.span.start <= span.start <= span.end <= task.span.end
    if not is_inside:
        raise Forbidden(
            f"partition {item.partition_key} is outside this task's scope "
            f"{task.span.key if task.span else task.partition_key}; publish only that scope"
        )


# Partitions are locked in one order, so that two completions cannot deadlock.
_LOCK_EXISTING = """
WITH task AS (
    SELECT t.org_id, t.partition_key, t.range_start, t.range_end, t.is_refresh, t.pinned_snapshot,
           i.made_xid,
           t.cursor_value IS NOT NULL AND t.invalidation_id IS NULL AS follows,
           missed_invalidation(t) AS missed_invalidation,
           r.operator = ANY(%(keepers)s::text[]) AS keeps_rows, r.checks IS NOT NULL AS has_checks
      FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
      LEFT JOIN invalidations i ON i.invalidation_id = t.invalidation_id
     WHERE t.task_id = %(task_id)s
), existing AS (
    SELECT n.place, p.partition_key, p.range_start, p.range_end, p.content_hash,
           read_later(p.read_snapshot, task.pinned_snapshot) AS is_newer,
           coalesce(pg_visible_in_snapshot(task.made_xid, p.read_snapshot), false) AS is_cured
      FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(starts)s::bigint[], %(ends)s::bigint[])
           WITH ORDINALITY AS n (dataset_version, partition_key, first_block, last_block, place)
      JOIN dataset_versions v ON v.dataset_version = n.dataset_version
      JOIN LATERAL (
           SELECT q.dataset_version, q.partition_key FROM partitions q
            WHERE q.dataset_version = n.dataset_version AND q.partition_key = n.partition_key
            UNION
           SELECT q.dataset_version, q.partition_key FROM partitions q
            WHERE n.first_block IS NOT NULL AND q.dataset_version = n.dataset_version
              AND overlaps_blocks(q, v.generation_no, n.first_block, n.last_block)
      ) q ON true
      JOIN partitions p
        ON p.dataset_version = q.dataset_version AND p.partition_key = q.partition_key
     CROSS JOIN task
     ORDER BY p.dataset_version, p.partition_key
       FOR UPDATE OF p
)
SELECT task.org_id, task.partition_key, task.range_start, task.range_end, task.is_refresh,
       task.follows, task.missed_invalidation, task.keeps_rows, task.has_checks,
       e.place, e.partition_key, e.range_start, e.range_end, e.is_newer, e.is_cured, e.content_hash
  FROM task LEFT JOIN existing e ON true
"""


async def _lock_existing(conn: Conn, fence: Fence, new: list[NewPartition]) -> _CommittingTask:
    values = {
        "task_id": fence.task_id,
        "keepers": sorted(COLUMN_KEEPERS),
        "versions": [n.dataset_version for n in new],
        "keys": [n.partition_key for n in new],
        "starts": [n.range_start for n in new],
        "ends": [n.range_end for n in new],
    }
    rows: list[tuple[Any, ...]] = await (await conn.execute(_LOCK_EXISTING, values)).fetchall()
    existing = [list[ExistingPartition]() for _ in new]
    for *_, position, key, start, end, is_newer, is_cured, content_hash in rows:
        if position is not None:
            span = make_range(start, end)
            partition = ExistingPartition(key, span, is_newer, is_cured, content_hash)
            existing[int(position) - 1].append(partition)
    # The completion has locked its task.
    org_id, key, start, end, is_refresh, follows, missed, keeps_rows, has_checks, *_ = rows[0]
    span = make_range(start, end)
    return _CommittingTask(
        org_id, key, span, is_refresh, follows, missed, keeps_rows, has_checks, existing
    )


_DELETE_COVERED = """
WITH lineage AS (
    DELETE FROM partition_inputs l USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
     WHERE l.dataset_version = g.v AND l.partition_key = g.k
)
DELETE FROM partitions p USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
 WHERE p.dataset_version = g.v AND p.partition_key = g.k
RETURNING p.dataset_version, p.partition_key, p.row_sum, p.columns
"""
_Rows = dict[tuple[UUID, str], RowSet]


async def _delete_covered(conn: Conn, covered: list[tuple[UUID, str]]) -> _Rows:
    """Delete the partitions that new ones cover. Returns what their certificates say of their rows."""
    values = {"versions": [v for v, _ in covered], "keys": [key for _, key in covered]}
    rows = await (await conn.execute(_DELETE_COVERED, values)).fetchall()
    return {(version, key): RowSet(row_sum, columns) for version, key, row_sum, columns in rows}


@dataclass(frozen=True)
class _Replaced:
    """The committed partitions that a new one replaces."""

    existing: list[ExistingPartition]
    covered: list[str]
    """The keys of those that have another key."""

    def get_hash(self) -> str | None:
        """The content hash of the only replaced partition."""
        return self.existing[0].content_hash if len(self.existing) == 1 else None

    def has_same_rows(self, item: NewPartition, rows: _Rows) -> bool:
        """Whether the certificates prove that readers see the same rows as before."""
        if item.content_hash is not None and item.content_hash == self.get_hash():
            return True
        parts = [rows[item.dataset_version, key] for key in self.covered]
        is_whole = len(parts) == len(self.existing)
        return is_whole and keeps_all_rows(RowSet(item.row_sum, item.columns), parts)


# Run the same scope and definition again: the task read inputs that are older than the inputs of a
# committed partition, or inputs that became invalid while it ran.
_RUN_AGAIN = """
SELECT task_id FROM create_tasks(ARRAY(
    SELECT new_task(org_id, job_id, revision_id, runtime, bulk, 'again:' || task_id, max_attempts,
                    max_concurrency, timeout_seconds, lease_seconds, dataset_uuid,
                    dataset_version, partition_key, range_start, range_end, cursor_value,
                    invalidation_id)
      FROM tasks WHERE task_id = %(task_id)s))
"""

# The partition was requested again after the attempt pinned its inputs, and no other task answers that.
_REFRESH_AGAIN = """
SELECT count(*) FROM enqueue(ARRAY(
    SELECT wake_entry(task_id, runtime) FROM refresh_again(%(task_id)s)))
"""

# A pointer only moves to an attempt that read its inputs later. The statement compares with the current
# row, so an older output cannot replace a newer one. A pointer that moved, or that replaced others, is a
# rewrite. Readers learn of it from the delivery log, unless the rows are the same.
_MOVE_POINTERS = """
WITH moved AS (
    INSERT INTO partitions AS p (
           dataset_version, generation_no, partition_key, range_start, range_end, storage_ref,
           row_count, byte_count, object_count, columns, config_hash, verified, content_hash,
           row_sum, files, task_id, attempt, read_snapshot, revision_id, dag_version)
    SELECT v.dataset_version, v.generation_no, n.partition_key, n.range_start, n.range_end,
           n.storage_ref, n.row_count, n.byte_count, n.object_count, n.columns, n.config_hash,
           n.verified, n.content_hash, n.row_sum, n.files, t.task_id, t.attempt, t.pinned_snapshot,
           t.revision_id, CASE WHEN t.revision_id IN (j.revision_id, j.building_revision_id)
                               THEN g.dag_version END
      FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(starts)s::bigint[], %(ends)s::bigint[],
                  %(refs)s::jsonb[], %(rows)s::bigint[], %(bytes)s::bigint[], %(objects)s::int[],
                  %(columns)s::jsonb[], %(hashes)s::text[], %(verified)s::jsonb[],
                  %(contents)s::text[], %(sums)s::text[], %(files)s::jsonb[])
           AS n (dataset_version, partition_key, range_start, range_end, storage_ref, row_count,
                 byte_count, object_count, columns, config_hash, verified, content_hash, row_sum, files)
      JOIN dataset_versions v ON v.dataset_version = n.dataset_version
      JOIN tasks t ON t.task_id = %(task_id)s
      JOIN jobs j ON j.job_id = t.job_id JOIN dags g ON g.dag_id = j.dag_id
    ON CONFLICT (dataset_version, partition_key) DO UPDATE
       SET storage_ref = EXCLUDED.storage_ref, row_count = EXCLUDED.row_count,
           byte_count = EXCLUDED.byte_count, object_count = EXCLUDED.object_count,
           columns = EXCLUDED.columns, config_hash = EXCLUDED.config_hash,
           verified = EXCLUDED.verified,
           content_hash = EXCLUDED.content_hash, row_sum = EXCLUDED.row_sum, files = EXCLUDED.files,
           revision_id = EXCLUDED.revision_id, dag_version = EXCLUDED.dag_version,
           task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt,
           read_snapshot = EXCLUDED.read_snapshot, commit_xid = EXCLUDED.commit_xid,
           committed_at = now()
     WHERE NOT read_later(p.read_snapshot, EXCLUDED.read_snapshot)
    RETURNING p.dataset_version, p.partition_key, p.range_start, p.range_end, p.content_hash,
              p.row_count, p.task_id, p.attempt, p.xmax::text <> '0' AS has_moved
), result AS (
    SELECT v.dataset_uuid, m.*, o.existing, o.old_hash, o.is_same,
           m.has_moved OR o.is_covering AS is_rewrite
      FROM moved m JOIN dataset_versions v ON v.dataset_version = m.dataset_version
      JOIN unnest(%(versions)s::uuid[], %(keys)s::text[], %(existing)s::int[], %(old)s::text[],
                  %(same)s::boolean[], %(covering)s::boolean[])
           AS o (dataset_version, partition_key, existing, old_hash, is_same, is_covering)
        ON o.dataset_version = m.dataset_version AND o.partition_key = m.partition_key
), delivered AS (
    INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key, range_start,
                            range_end, old_hash, new_hash, row_count, task_id, attempt)
    SELECT dataset_uuid, dataset_version, CASE WHEN is_rewrite THEN 'replaced' ELSE 'published' END,
           partition_key, range_start, range_end, old_hash, content_hash, row_count, task_id, attempt
      FROM result WHERE NOT is_same
)
SELECT dataset_uuid, dataset_version, partition_key, range_start, range_end, is_rewrite,
       has_moved AND existing = 0 AS is_surprise
  FROM result
"""


@dataclass(frozen=True)
class _Moved:
    """A partition whose pointer moved."""

    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    range_start: int | None
    range_end: int | None
    is_rewrite: bool
    is_surprise: bool
    """Another transaction created the partition after this one looked for it."""


async def _move_pointers(
    conn: Conn, fence: Fence, new: list[NewPartition], replaced: list[_Replaced], rows: _Rows
) -> list[_Moved]:
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in new],
        "keys": [n.partition_key for n in new],
        "starts": [n.range_start for n in new],
        "ends": [n.range_end for n in new],
        "refs": [Jsonb(n.storage_ref) for n in new],
        "rows": [n.row_count for n in new],
        "bytes": [n.byte_count for n in new],
        "objects": [n.object_count for n in new],
        "columns": [Jsonb(n.columns) for n in new],
        "hashes": [n.config_hash for n in new],
        "verified": [None if n.verified is None else Jsonb(n.verified) for n in new],
        "contents": [n.content_hash for n in new],
        "sums": [n.row_sum for n in new],
        "files": [None if n.files is None else Jsonb(n.files) for n in new],
        "existing": [len(r.existing) for r in replaced],
        "old": [r.get_hash() for r in replaced],
        "same": [r.has_same_rows(n, rows) for n, r in zip(new, replaced, strict=True)],
        "covering": [bool(r.covered) for r in replaced],
    }
    try:
        found = await (await conn.execute(_MOVE_POINTERS, values)).fetchall()
    except ExclusionViolation as error:
        raise ConcurrentCommit from error
    moved = [_Moved(*row) for row in found]
    if any(m.is_surprise for m in moved):
        raise ConcurrentCommit  # its content hash is not known here
    return moved


_NOTE_UNCOMMITTED = """
INSERT INTO unused_prefixes (prefix, kind, org_id, scheme, bucket, dataset_uuid, dataset_version,
                             task_id, attempt, objects, bytes)
SELECT DISTINCT ON (n.ref->>'prefix') n.ref->>'prefix', 'uncommitted', t.org_id, n.ref->>'scheme',
       n.ref->>'bucket', v.dataset_uuid, v.dataset_version, t.task_id, t.attempt, n.objects, n.bytes
  FROM unnest(%(versions)s::uuid[], %(refs)s::jsonb[], %(objects)s::int[], %(bytes)s::bigint[])
       AS n (dataset_version, ref, objects, bytes)
  JOIN dataset_versions v ON v.dataset_version = n.dataset_version
  JOIN tasks t ON t.task_id = %(task_id)s
 WHERE n.ref ? 'prefix'
   AND NOT EXISTS (SELECT FROM partitions p
                    WHERE p.task_id = t.task_id AND p.storage_ref->>'prefix' = n.ref->>'prefix')
ON CONFLICT (prefix) DO NOTHING
"""


async def _note_uncommitted(conn: Conn, fence: Fence, outputs: Sequence[NewPartition]) -> None:
    """Record the outputs that no partition points at, so that the storage sweeper deletes them."""
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in outputs],
        "refs": [Jsonb(n.storage_ref) for n in outputs],
        "objects": [n.object_count for n in outputs],
        "bytes": [n.byte_count for n in outputs],
    }
    await conn.execute(_NOTE_UNCOMMITTED, values)


# Records the partitions that `pinned_inputs` chooses; `*` means the whole input. An input partition
# outside the attempt's snapshot was rewritten while the attempt ran. It is then unknown which attempt
# wrote the rows that were read.
_RECORD_LINEAGE = """
INSERT INTO partition_inputs AS l (
       dataset_version, partition_key, input_version, input_key, input_task_id, input_attempt,
       input_hash, task_id, attempt)
SELECT DISTINCT ON (o.dataset_version, o.partition_key, v.dataset_version, p.partition_key)
       o.dataset_version, o.partition_key, v.dataset_version, p.partition_key,
       p.task_id, p.attempt, p.content_hash, t.task_id, t.attempt
  FROM tasks t
  JOIN job_inputs i ON i.revision_id = t.revision_id AND i.reads
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  JOIN dataset_versions v
    ON v.dataset_version = input_generation(i, d, t.dataset_uuid, t.dataset_version)
 CROSS JOIN LATERAL (SELECT t.is_refresh AND i.time_column IS NOT NULL) AS m (is_mapped)
 CROSS JOIN LATERAL (
       SELECT '*' AS partition_key, NULL::uuid AS task_id, NULL::int AS attempt,
              hash_of_generation(v.dataset_version, t.pinned_snapshot) AS content_hash
        WHERE t.range_start IS NULL AND NOT m.is_mapped
          AND NOT reads_one_key(v.dataset_version, t)
        UNION ALL
       SELECT q.partition_key, CASE WHEN s.is_seen THEN q.task_id END,
              CASE WHEN s.is_seen THEN q.attempt END, CASE WHEN s.is_seen THEN q.content_hash END
         FROM partitions q
        CROSS JOIN LATERAL (
              SELECT pg_visible_in_snapshot(q.commit_xid, t.pinned_snapshot)) AS s (is_seen)
        WHERE t.range_start IS NOT NULL AND q.dataset_version = v.dataset_version
          AND overlaps_blocks(q, v.generation_no, t.range_start, t.range_end)
        UNION ALL
       SELECT q.partition_key, q.task_id, q.attempt, q.content_hash FROM partitions q
        WHERE t.range_start IS NULL AND NOT m.is_mapped
          AND q.dataset_version = v.dataset_version
          AND q.partition_key = t.partition_key AND reads_one_key(v.dataset_version, t)
        UNION ALL
       SELECT q.partition_key, CASE WHEN s.is_seen THEN q.task_id END,
              CASE WHEN s.is_seen THEN q.attempt END, CASE WHEN s.is_seen THEN q.content_hash END
         FROM job_revisions own
         JOIN time_keys k ON k.job_id = own.job_id AND k.generation_hash = own.generation_hash
          AND k.input_version = v.dataset_version AND k.time_key = t.partition_key
         JOIN partitions q ON q.dataset_version = k.input_version
          AND q.partition_key = k.input_key
        CROSS JOIN LATERAL (
              SELECT pg_visible_in_snapshot(q.commit_xid, t.pinned_snapshot)) AS s (is_seen)
        WHERE m.is_mapped AND own.revision_id = t.revision_id
 ) p
 CROSS JOIN unnest(%(versions)s::uuid[], %(keys)s::text[]) AS o (dataset_version, partition_key)
 WHERE t.task_id = %(task_id)s
ON CONFLICT (dataset_version, partition_key, input_version, input_key) DO UPDATE
   SET input_task_id = EXCLUDED.input_task_id, input_attempt = EXCLUDED.input_attempt,
       input_hash = EXCLUDED.input_hash, task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt
"""


async def _record_lineage(conn: Conn, fence: Fence, moved: list[_Moved]) -> None:
    values = {
        "task_id": fence.task_id,
        "versions": [m.dataset_version for m in moved],
        "keys": [m.partition_key for m in moved],
    }
    await conn.execute(_RECORD_LINEAGE, values)


async def _invalidate_rewritten(
    conn: Conn, fence: Fence, org_id: UUID, moved: list[_Moved]
) -> None:
    """Invalidate everything made from the partitions that this commit replaced."""
    rewritten = [
        NewInvalidation(
            dataset_uuid=m.dataset_uuid,
            dataset_version=m.dataset_version,
            kind="partition",
            partition_key=m.partition_key,
            range_start=m.range_start,
            range_end=m.range_end,
            filter=None,
            reason="rewritten",
            once_key=f"rewritten:{m.partition_key}",
        )
        for m in moved
        if m.is_rewrite
    ]
    if rewritten:
        made_by = f"task:{fence.task_id}"
        await invalidations.record(conn, org_id, rewritten, made_by=made_by, fence=fence)
