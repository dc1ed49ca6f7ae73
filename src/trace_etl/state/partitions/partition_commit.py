"""Partition commits: point partitions at an attempt's output, record lineage and rewrites."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from trace_etl.api.task.checks import CheckResult
from trace_etl.dag.operators import COLUMN_KEEPERS
from trace_etl.model.errors import Forbidden, PartitionOverlap
from trace_etl.model.scope import Range, make_range
from trace_etl.model.task import Fence
from trace_etl.policy.commit.commit_decision import CommitDecision, ExistingPartition, decide_commit
from trace_etl.state.db.pool import Conn
from trace_etl.state.invalidations import invalidations
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.partitions import (
    check_results,
    kept_rows,
    lineage,
    partition_links,
    partition_pointers,
    provisional,
)
from trace_etl.state.partitions.new_partition import NewPartition
from trace_etl.state.partitions.partition_pointers import MovedPartition, ReplacedPartitions
from trace_etl.state.storage import unused_prefixes


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
    decided = _decide_all(task, new)
    if decided.runs_again:
        await conn.execute(_RUN_AGAIN, {"task_id": fence.task_id})
    visible, confirmed, covered = decided.visible, decided.confirmed, decided.covered
    rows = await partition_pointers.delete_covered(conn, covered) if covered else {}
    if task.keeps_rows and visible:
        visible = await kept_rows.prove_kept_rows(conn, fence, visible)
    linked = _list_linked([*visible, *confirmed])
    if linked:
        await partition_links.lock_borders(conn, linked)
    moved = (
        await partition_pointers.move_pointers(conn, fence, visible, decided.replaced, rows)
        if visible
        else []
    )
    if confirmed:
        await provisional.confirm(conn, confirmed)
    if any(item.is_provisional for item in visible):
        await provisional.recheck(conn, fence)
    if linked:
        await partition_links.check_links(conn, fence, linked)
    if len(moved) < len(outputs):
        await unused_prefixes.note_uncommitted(conn, fence, outputs)
    if visible:
        await _record_checks(conn, fence, task, moved, covered, checks)
        await lineage.record(conn, fence, moved)
        await _invalidate_rewritten(conn, fence, task.org_id, moved)
        if task.missed_invalidation:
            await conn.execute(_RUN_AGAIN, {"task_id": fence.task_id})
    if task.is_refresh:
        await conn.execute(_REFRESH_AGAIN, {"task_id": fence.task_id})
    return visible


@dataclass
class _CommitDecisions:
    """The decisions about the new partitions of a completion."""

    visible: list[NewPartition] = field(default_factory=list[NewPartition])
    replaced: list[ReplacedPartitions] = field(default_factory=list[ReplacedPartitions])
    """What each visible partition replaces, in the same order."""
    confirmed: list[NewPartition] = field(default_factory=list[NewPartition])
    covered: list[tuple[UUID, str]] = field(default_factory=list[tuple[UUID, str]])
    """Committed partitions that a visible one replaces, by version and key."""
    runs_again: bool = False


def _decide_all(task: _CommittingTask, new: Sequence[NewPartition]) -> _CommitDecisions:
    """Decide for each new partition. Raises Forbidden or PartitionOverlap."""
    decided = _CommitDecisions()
    for item, existing in zip(new, task.existing, strict=True):
        _require_inside(task, item)
        final_hash = None if item.is_provisional else item.content_hash
        match decide_commit(
            item.partition_key, item.span, existing, follows=task.follows, final_hash=final_hash
        ):
            case CommitDecision.OVERLAP:
                raise PartitionOverlap(_describe_overlap(item, existing))
            case CommitDecision.RUN_AGAIN:
                decided.runs_again = True
            case CommitDecision.SUPERSEDED:
                pass
            case CommitDecision.CONFIRM:
                decided.confirmed.append(item)
            case CommitDecision.COMMIT:
                others = sorted({e.partition_key for e in existing} - {item.partition_key})
                decided.visible.append(item)
                decided.covered += [(item.dataset_version, key) for key in others]
                decided.replaced.append(ReplacedPartitions(existing, others))
    return decided


async def _record_checks(
    conn: Conn,
    fence: Fence,
    task: _CommittingTask,
    moved: Sequence[MovedPartition],
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
           coalesce((p.verified ->> 'provisional')::boolean, false) AS is_provisional,
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
       e.place, e.partition_key, e.range_start, e.range_end, e.is_newer, e.is_cured, e.content_hash,
       e.is_provisional
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
    for *_, position, key, start, end, is_newer, is_cured, content_hash, is_early in rows:
        if position is not None:
            span = make_range(start, end)
            partition = ExistingPartition(key, span, is_newer, is_cured, content_hash, is_early)
            existing[int(position) - 1].append(partition)
    # The completion has locked its task.
    org_id, key, start, end, is_refresh, follows, missed, keeps_rows, has_checks, *_ = rows[0]
    span = make_range(start, end)
    return _CommittingTask(
        org_id, key, span, is_refresh, follows, missed, keeps_rows, has_checks, existing
    )


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

# The partition was requested again after the attempt pinned its inputs, and no other task covers that request.
_REFRESH_AGAIN = """
SELECT count(*) FROM enqueue(ARRAY(
    SELECT wake_entry(task_id, runtime) FROM refresh_again(%(task_id)s)))
"""


async def _invalidate_rewritten(
    conn: Conn, fence: Fence, org_id: UUID, moved: list[MovedPartition]
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
