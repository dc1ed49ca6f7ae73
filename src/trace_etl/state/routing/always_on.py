"""Supervise always_on sources: one task for each generation that is live or being built.

The live revision of a job and the one being built may both run, because each writes its own generation.
A task keeps its id over restarts, and over deploys that do not change the generation.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.policy.retry import Backoff
from trace_etl.state.db.pool import Conn

# Limits of attempts do not apply to these tasks: an ended task is always restarted.
_MAX_ATTEMPTS = 1_000_000
_TIMEOUT_SECONDS = 365 * 86400
# One replica at a time: a second replica would restart a task before its delay has passed.
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.always_on', 0))"

# Stop tasks whose job was removed, paused by a user or redeployed with another definition. A running
# task is asked to stop, a waiting one is canceled. Backpressure stops no task: the heartbeat reply asks a
# running task to hold, and a task that does not run is not started.
_STOP = """
WITH unwanted AS MATERIALIZED (
    SELECT task_id FROM always_on_tasks WHERE wanted_revision IS DISTINCT FROM revision_id
)
UPDATE tasks t
   SET status = CASE t.status WHEN 'Running' THEN t.status ELSE 'Canceled' END,
       finished_at = CASE t.status WHEN 'Running' THEN t.finished_at ELSE now() END,
       cause = CASE t.status WHEN 'Running' THEN t.cause END,  -- so a late completion is refused
       cancel_requested = true, retry_at = NULL
  FROM unwanted u
 WHERE t.task_id = u.task_id
   AND ((t.status IN ('Queued', 'Running') AND NOT t.cancel_requested)
        OR t.retry_at IS NOT NULL)
RETURNING t.task_id
"""
_START = """
SELECT task_id FROM create_tasks(ARRAY(
    SELECT new_task(org_id, job_id, revision_id, runtime, bulk, 'always_on:' || generation_hash,
                    %(max_attempts)s, NULL, %(timeout_seconds)s, heartbeat_timeout_seconds)
      FROM startable_sources))
"""
# The delay doubles with each attempt that ended within the window. The length of an attempt does not
# matter.
_RESTART = """
WITH ended AS MATERIALIZED (
    SELECT m.task_id, w.revision_id, w.runtime, w.bulk, w.heartbeat_timeout_seconds,
           coalesce(m.finished_at, h.last_end, '-infinity') AS ended_at, h.recent
      FROM always_on_tasks m
      JOIN startable_sources w ON w.job_id = m.job_id AND w.revision_id = m.wanted_revision
     CROSS JOIN LATERAL (
           SELECT max(a.ended_at) AS last_end,
                  count(*) FILTER (WHERE a.ended_at > now() - %(window)s) AS recent
             FROM task_attempts a WHERE a.task_id = m.task_id AND a.attempt > m.attempt - 20) h
     WHERE m.status IN ('Completed', 'Failed', 'Canceled')
), started AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = t.attempt + 1, queued_at = now(), retry_at = NULL,
           revision_id = e.revision_id, runtime = e.runtime, bulk = e.bulk,
           lease_seconds = e.heartbeat_timeout_seconds, timeout_seconds = %(timeout_seconds)s,
           lease_token = NULL, lease_expires_at = NULL, deadline_at = NULL, worker_id = NULL,
           started_at = NULL, finished_at = NULL, completion_hash = NULL, cause = NULL,
           isolation = NULL,
           cancel_requested = false, abandoned = false,
           cursor_value = (SELECT max(v.cursor_value) FROM events v
                            WHERE v.producer_task_id = t.task_id AND v.cursor_value IS NOT NULL)
      FROM ended e
     WHERE t.task_id = e.task_id AND t.status IN ('Completed', 'Failed', 'Canceled')
       AND e.ended_at + least(%(max_delay)s::interval,
                              %(initial_delay)s::interval * (2 ^ greatest(0, e.recent - 1)))
           * least(1, e.recent)::float8 <= now()
    RETURNING t.task_id, t.runtime
), woken AS (
    SELECT count(*) FROM enqueue(ARRAY(SELECT wake_entry(task_id, runtime) FROM started))
)
SELECT task_id FROM started CROSS JOIN woken
"""


@dataclass(frozen=True)
class SourceChanges:
    """The tasks that one pass over the sources changed."""

    stopped: list[UUID]
    started: list[UUID]
    restarted: list[UUID]


async def supervise(conn: Conn, restart: Backoff, *, window: timedelta) -> SourceChanges:
    """Stop unwanted tasks, start missing ones, and restart ended ones after their delay."""
    row = await (await conn.execute(_TRY_LOCK)).fetchone()
    if row is None or not row[0]:
        return SourceChanges([], [], [])
    values = {
        "max_attempts": _MAX_ATTEMPTS,
        "timeout_seconds": _TIMEOUT_SECONDS,
        "initial_delay": restart.initial,
        "max_delay": restart.max_delay,
        "window": window,
    }
    changed: list[list[UUID]] = []
    for query in (_STOP, _START, _RESTART):
        cursor = await conn.execute(query, values)
        changed.append([row[0] for row in await cursor.fetchall()])
    return SourceChanges(*changed)
