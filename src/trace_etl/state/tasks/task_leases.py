"""Whether the attempt of a task still holds its lease, for readers without access to tasks."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.model.errors import LeaseLost
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one


@dataclass(frozen=True)
class TaskLease:
    attempt: int
    status: str
    cancel_requested: bool
    is_held: bool | None


_GET = """
SELECT attempt, status, cancel_requested, is_held FROM task_leases
 WHERE task_id = %(task_id)s AND org_id = %(org_id)s
"""


async def require_lease(conn: Conn, org_id: UUID, task_id: UUID, attempt: int) -> None:
    """Raise LeaseLost unless the attempt is the current one, runs and holds its lease."""
    lease = await fetch_one(conn, TaskLease, _GET, {"task_id": task_id, "org_id": org_id})
    if lease is None:
        raise LeaseLost("not_running", "the task no longer exists; stop this attempt")
    if lease.attempt != attempt:
        raise LeaseLost(
            "stale_attempt", f"attempt {lease.attempt} is the current one; stop this one"
        )
    if lease.status != "Running":
        raise LeaseLost("not_running", f"the task is {lease.status}; stop this attempt")
    if lease.cancel_requested:
        raise LeaseLost("canceled", "the task is being canceled; stop this attempt")
    if not lease.is_held:
        raise LeaseLost("lease_expired", "the lease has expired; send heartbeats while reading")
