"""Reported defects: a checker reports a wrong input, and the task that produced the input runs again."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from trace_etl.model.errors import Forbidden
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.invalidations.invalidations import NewInvalidation, as_rows


@dataclass(frozen=True)
class _Producer:
    """The task that produced a partition with a reported defect."""

    defect: int
    """The defect's position in the report, from 1."""
    task_id: UUID
    revision_id: UUID
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    is_rerun: bool
    """The task was already a rerun because of a defect. Another rerun would write the same rows."""
    rerun_id: UUID | None
    has_failed_rerun: bool


async def record(conn: Conn, fence: Fence, defects: list[NewInvalidation]) -> list[UUID]:
    """Record the defects that a checker reports, and rerun the tasks that produced them.

    Consumers, including the checker, run again when the partition is rewritten. Returns the ids of
    the new tasks. Raises Forbidden for blocks that the checker's task does not cover.
    """
    await _require_inside(conn, fence, defects)
    producers = await fetch_all(conn, _Producer, _FIND_PRODUCERS, {"defects": as_rows(defects)})
    recorded = await _insert(conn, fence, _describe_outcomes(defects, producers))
    return await _create_reruns(conn, producers, recorded)


_SCOPE = "SELECT range_start, range_end FROM tasks WHERE task_id = %(task_id)s"


async def _require_inside(conn: Conn, fence: Fence, defects: list[NewInvalidation]) -> None:
    row = await (await conn.execute(_SCOPE, {"task_id": fence.task_id})).fetchone()
    first, last = row or (None, None)
    for defect in defects:
        if first is None or last is None or defect.range_start is None or defect.range_end is None:
            continue
        if defect.range_end < first or last < defect.range_start:
            raise Forbidden(
                f"blocks {_name_scope(defect)} are outside the blocks {first}-{last} that this task "
                "checks; a task reports defects of its own blocks only"
            )


def _name_scope(defect: NewInvalidation) -> str:
    return defect.partition_key or f"{defect.range_start}-{defect.range_end}"


# If the invalidation of a task (`cause`) is about the task's own output, it is a reported defect: the task
# is already a rerun. Stored keys of defects begin with `doubt:`.
_FIND_PRODUCERS = """
SELECT DISTINCT ON (n.defect, t.task_id)
       n.defect, t.task_id, o.revision_id,
       CASE WHEN t.range_start IS NULL THEN p.partition_key ELSE t.partition_key END
           AS partition_key,
       coalesce(t.range_start, p.range_start) AS range_start,
       coalesce(t.range_end, p.range_end) AS range_end,
       cause.invalidation_id IS NOT NULL AS is_rerun, rerun.task_id AS rerun_id,
       coalesce(rerun.status = 'Canceled'
                OR (rerun.status = 'Failed' AND rerun.retry_at IS NULL), false) AS has_failed_rerun
  FROM jsonb_populate_recordset(NULL::new_invalidation, %(defects)s)
       WITH ORDINALITY AS n (dataset_uuid, dataset_version, kind, partition_key, range_start,
                             range_end, filter, reason, once_key, is_reorganisation,
                             defect)
  JOIN dataset_versions v ON v.dataset_version = n.dataset_version
  JOIN partitions p ON p.dataset_version = n.dataset_version
   AND (p.partition_key = n.partition_key
        OR (n.kind = 'row_range'
            AND overlaps_blocks(p, v.generation_no, n.range_start, n.range_end)))
  JOIN tasks t ON t.task_id = p.task_id
  JOIN jobs j ON j.job_id = t.job_id AND j.active
  JOIN job_outputs o ON o.dataset_version = p.dataset_version
   AND o.revision_id IN (j.revision_id, j.building_revision_id)
  LEFT JOIN invalidations cause ON cause.invalidation_id = t.invalidation_id
   AND cause.dataset_version = p.dataset_version
  LEFT JOIN tasks rerun ON rerun.job_id = t.job_id AND rerun.dedupe_key = 'doubt:' || t.task_id
 ORDER BY n.defect, t.task_id, o.revision_id = j.revision_id DESC
"""


def _describe_outcomes(
    defects: list[NewInvalidation], producers: list[_Producer]
) -> list[NewInvalidation]:
    """Add the outcome to the reason of each defect, and the key that identifies it."""
    by_defect = {n: list(group) for n, group in groupby(producers, lambda p: p.defect)}
    return [
        replace(
            defect,
            reason="; ".join(
                filter(None, (defect.reason, _describe_outcome(by_defect.get(n, []))))
            ),
            once_key=f"doubt:{defect.once_key or f'{defect.kind}:{_name_scope(defect)}'}",
        )
        for n, defect in enumerate(defects, start=1)
    ]


def _describe_outcome(producers: list[_Producer]) -> str:
    if not producers:
        return "not rebuilt: no active job produces this generation"
    if all(p.is_rerun for p in producers):
        first = min(str(p.task_id) for p in producers)
        return (
            f"not rebuilt: task {first} already rebuilt it because of a reported defect; "
            "check the node, then run `trace invalidate --rebuild`"
        )
    if all(p.has_failed_rerun for p in producers):
        return f"not rebuilt: task {min(str(p.rerun_id) for p in producers)} failed to rebuild it"
    return "being rebuilt"


# Defects are not routed: consumers run again when the partition is rewritten.
_INSERT = """
INSERT INTO invalidations AS i (org_id, dataset_uuid, dataset_version, kind, partition_key,
                                range_start, range_end, filter, reason, once_key, made_by, task_id,
                                attempt, routed_at)
SELECT t.org_id, n.dataset_uuid, n.dataset_version, n.kind, n.partition_key, n.range_start,
       n.range_end, n.filter, n.reason, n.once_key, 'task:' || t.task_id, t.task_id, %(attempt)s,
       now()
  FROM jsonb_populate_recordset(NULL::new_invalidation, %(defects)s) n
 CROSS JOIN (SELECT task_id, org_id FROM tasks WHERE task_id = %(task_id)s) t
ON CONFLICT ON CONSTRAINT invalidations_once DO NOTHING
RETURNING i.dataset_version, i.once_key, i.invalidation_id
"""


async def _insert(conn: Conn, fence: Fence, defects: list[NewInvalidation]) -> dict[int, UUID]:
    """Insert the defects. Returns the ids of the new ones by position in the report, from 1."""
    values = {"task_id": fence.task_id, "attempt": fence.attempt, "defects": as_rows(defects)}
    rows = await (await conn.execute(_INSERT, values)).fetchall()
    ids: dict[tuple[UUID, str], UUID] = {(row[0], row[1]): row[2] for row in rows}
    new_ids: dict[int, UUID] = {}
    for n, defect in enumerate(defects, start=1):
        invalidation_id = ids.pop((defect.dataset_version, defect.once_key or ""), None)
        if invalidation_id is not None:
            new_ids[n] = invalidation_id
    return new_ids


_CREATE_RERUNS = """
SELECT create_rerun_tasks(ARRAY(
    SELECT new_task(t.org_id, t.job_id, p.revision_id, t.runtime, t.bulk, 'doubt:' || t.task_id,
                    t.max_attempts, t.max_concurrency, t.timeout_seconds, t.lease_seconds,
                    t.dataset_uuid, t.dataset_version, p.partition_key, p.range_start,
                    p.range_end, t.cursor_value, p.invalidation_id)
      FROM unnest(%(task_ids)s::uuid[], %(revision_ids)s::uuid[], %(keys)s::text[],
                  %(starts)s::bigint[], %(ends)s::bigint[], %(invalidation_ids)s::uuid[])
           AS p (task_id, revision_id, partition_key, range_start, range_end, invalidation_id)
      JOIN tasks t ON t.task_id = p.task_id))
"""


async def _create_reruns(
    conn: Conn, producers: list[_Producer], recorded: dict[int, UUID]
) -> list[UUID]:
    by_task = {p.task_id: p for p in producers if p.defect in recorded and not p.is_rerun}
    if not by_task:
        return []
    reruns = list(by_task.values())
    values: dict[str, list[Any]] = {
        "task_ids": [p.task_id for p in reruns],
        "revision_ids": [p.revision_id for p in reruns],
        "keys": [p.partition_key for p in reruns],
        "starts": [p.range_start for p in reruns],
        "ends": [p.range_end for p in reruns],
        "invalidation_ids": [recorded[p.defect] for p in reruns],
    }
    return [row[0] for row in await (await conn.execute(_CREATE_RERUNS, values)).fetchall()]
