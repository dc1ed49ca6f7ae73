"""Claims by task id (`Queued → Running`), many requests in one statement and one commit."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from trace_etl.model.errors import NotFound
from trace_etl.model.task import NotClaimedReason, TaskStatus
from trace_etl.state.db.pool import Conn, rows_as_json
from trace_etl.state.db.rows import fetch_all


class ClaimRequest(NamedTuple):
    """A claim request. The caller generates the lease token, so a retried request is recognised."""

    task_id: UUID
    worker_id: str
    lease_token: UUID


class ClaimedTask(NamedTuple):
    """A claimed task with the columns of its payload. A tuple is fast to build, and claims are frequent."""

    task_id: UUID
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    org_id: UUID
    revision_id: UUID
    timeout_seconds: int
    lease_seconds: int
    dataset_uuid: UUID | None
    dataset_version: UUID | None
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    cursor_value: int | None
    invalidation_id: UUID | None
    pins: str | None
    """JSON; for each input: index, dataset version, published name, partitions (key, first, last, storage)."""
    parameters: str | None
    """JSON; what the event that started the task passes to it: `scheduled_time`, `payload`."""
    is_refresh: bool
    """Whether the task makes its partition from everything that its inputs hold."""


# The statement that starts a task also pins its input partitions.
#
# The two `||` make the planner use the primary key of `tasks`. The one on `t.status` excludes the indexes
# over queued tasks. The one on `l.worker_id` makes the planner expect one request. Without it, the planner
# expects a hundred requests and scans the whole table if the table is small.
_CLAIM = """
UPDATE tasks t
   SET status = 'Running', lease_token = l.lease_token, worker_id = l.worker_id,
       started_at = now(), pinned_snapshot = pg_current_snapshot(),
       lease_expires_at = now() + make_interval(secs => t.lease_seconds),
       deadline_at = now() + make_interval(secs => t.timeout_seconds)
  FROM json_to_recordset(%(requests)s::json) AS l (
       task_id uuid, worker_id text, lease_token uuid), jobs j
 WHERE t.task_id = l.task_id AND t.status || '' = 'Queued' AND NOT t.cancel_requested
   AND l.worker_id || '' = l.worker_id AND j.job_id = t.job_id
   AND t.max_concurrency IS NULL AND j.capped_operator IS NULL AND NOT is_paused(j, t.bulk)
   AND NOT is_held_by_check(t)
RETURNING t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
       t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
       t.range_start, t.range_end, t.cursor_value, t.invalidation_id,
       (SELECT json_agg(pin) FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version,
                                                t.range_start, t.range_end, t.partition_key,
                                                t.is_refresh))::text AS pins,
       t.parameters::text, t.is_refresh
"""


async def claim(conn: Conn, requests: list[ClaimRequest]) -> dict[UUID, ClaimedTask]:
    """Start every requested task that may start now and has no cap.

    Returns the started tasks by lease token; a refused request has no entry.
    """
    claimed = await conn.rows(_CLAIM, {"requests": as_json(requests)}, ClaimedTask._make)
    return {task.lease_token: task for task in claimed}


def as_json(requests: list[ClaimRequest]) -> str:
    """Return requests as JSON, sorted by task id so that two batches cannot deadlock."""
    return rows_as_json([r._asdict() for r in sorted(requests, key=lambda r: r.task_id)])


@dataclass(frozen=True)
class ClaimState:
    """The state of a task that explains why a claim was refused."""

    task_id: UUID
    status: TaskStatus
    lease_token: UUID | None
    cancel_requested: bool
    capped: bool
    retry_at: datetime | None

    def reason(self) -> NotClaimedReason:
        if self.status == "Running":
            return NotClaimedReason.ALREADY_RUNNING
        if self.status == "Completed":
            return NotClaimedReason.COMPLETED
        if self.status == "Canceled" or self.cancel_requested:
            return NotClaimedReason.CANCELED
        return NotClaimedReason.NOT_READY


_CLAIM_STATES = """
SELECT t.task_id, t.status, t.lease_token, t.cancel_requested, t.retry_at,
       t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL AS capped
  FROM tasks t JOIN jobs j USING (job_id) WHERE t.task_id = ANY(%(task_ids)s)
"""


async def claim_states(conn: Conn, task_ids: list[UUID]) -> dict[UUID, ClaimState]:
    """Return the states of the given tasks; an unknown task has no entry."""
    rows = await fetch_all(conn, ClaimState, _CLAIM_STATES, {"task_ids": task_ids})
    return {row.task_id: row for row in rows}


_FIND_CLAIMED = """
SELECT task_id, attempt, lease_token, lease_expires_at, org_id, revision_id, timeout_seconds,
       lease_seconds, dataset_uuid, dataset_version, partition_key, range_start, range_end,
       cursor_value, invalidation_id, pins, parameters::text, is_refresh
  FROM claimed_tasks WHERE lease_token = %(lease_token)s::uuid AND task_id = %(task_id)s::uuid
"""


async def find_claimed(conn: Conn, request: ClaimRequest) -> list[ClaimedTask]:
    """Find the task that an earlier, identical request claimed."""
    values = {"lease_token": request.lease_token.hex, "task_id": request.task_id.hex}
    return await conn.rows(_FIND_CLAIMED, values, ClaimedTask._make)


_FIND_RUNNING = """
SELECT task_id, attempt, lease_token, lease_expires_at, org_id, revision_id, timeout_seconds,
       lease_seconds, dataset_uuid, dataset_version, partition_key, range_start, range_end,
       cursor_value, invalidation_id, pins, parameters::text, is_refresh
  FROM claimed_tasks WHERE status = 'Running' AND lease_token = ANY(%(lease_tokens)s::uuid[])
"""


async def find_running(conn: Conn, lease_tokens: list[UUID]) -> list[ClaimedTask]:
    """Find the running tasks with these lease tokens, for repeated claims that name no task."""
    values = {"lease_tokens": "{" + ",".join([token.hex for token in lease_tokens]) + "}"}
    return await conn.rows(_FIND_RUNNING, values, ClaimedTask._make)


_GET = """
SELECT task_id, attempt, lease_token, lease_expires_at, org_id, revision_id, timeout_seconds,
       lease_seconds, dataset_uuid, dataset_version, partition_key, range_start, range_end,
       cursor_value, invalidation_id, pins, parameters::text, is_refresh
  FROM claimed_tasks WHERE task_id = %(task_id)s::uuid
"""


async def get_claimed(conn: Conn, task_id: UUID) -> ClaimedTask:
    """Return the payload columns of a task in any status. Raises NotFound."""
    rows = await conn.rows(_GET, {"task_id": task_id.hex}, ClaimedTask._make)
    if not rows:
        raise NotFound(f"no task {task_id}; `trace tasks` lists them")
    return rows[0]
