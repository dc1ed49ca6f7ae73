"""Tasks of Lambda runtimes: leased by the Dispatcher, then invoked through the outbox."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.routing.outbox import LeasedRow
from trace_etl.state.tasks.claims import ClaimedTask

_IS_ANY_QUEUED = """
SELECT EXISTS (SELECT FROM tasks WHERE runtime = %(runtime)s AND status = 'Queued')
"""


async def is_any_queued(conn: Conn, runtime: str) -> bool:
    """Return whether a task of the runtime waits, even if it may not start now."""
    row = await (await conn.execute(_IS_ANY_QUEUED, {"runtime": runtime})).fetchone()
    return bool(row and row[0])


# The lock serialises the starts of one runtime over all replicas, until commit.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('invoke:' || %(runtime)s, 0))"
_RUNNING = "SELECT count(*) FROM tasks WHERE status = 'Running' AND runtime = %(runtime)s"


async def lock_running(conn: Conn, runtime: str) -> int:
    """Stop other replicas from starting tasks of the runtime until commit. Returns how many run."""
    await conn.execute(_LOCK, {"runtime": runtime})
    row = await (await conn.execute(_RUNNING, {"runtime": runtime})).fetchone()
    return row[0] if row else 0


_REQUEST = """
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT outbox_entry('invoke', t.task_id, %(runtime)s,
                        jsonb_build_object('lease_token', t.lease_token))
      FROM unnest(%(task_ids)s::uuid[], %(lease_tokens)s::uuid[]) AS t (task_id, lease_token)))
"""


async def request(conn: Conn, runtime: str, tasks: Sequence[ClaimedTask]) -> None:
    """Request the invocations of tasks, in the transaction that leases them."""
    values = {
        "runtime": runtime,
        "task_ids": [task.task_id for task in tasks],
        "lease_tokens": [task.lease_token for task in tasks],
    }
    await conn.execute(_REQUEST, values)


def leased_by(row: LeasedRow) -> UUID:
    """Return the lease that an invocation belongs to."""
    return UUID((row.body or {})["lease_token"])
