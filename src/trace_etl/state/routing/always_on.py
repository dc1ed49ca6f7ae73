"""Sources that run all the time: one task for each generation that is live or being built.

A job's live revision and the one built beside it may both run: each feeds its own generation. The
task keeps its id over every restart and over redeploys that leave the generation as it is.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

from trace_etl.state.db.pool import Conn

# The attempt limit is nobody's business here: whatever ends is started again.
_MANY = 1_000_000
_YEAR = 365 * 86400
# Over all replicas: two that restart the same task would only undo each other's wait.
_ALONE = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.always_on', 0))"

_WANTED: LiteralString = """
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT ON (j.job_id, r.generation_hash)
           j.org_id, j.job_id, r.revision_id, r.generation_hash, r.runtime,
           r.priority = 'bulk' AS bulk, r.heartbeat_timeout_seconds,
           j.paused_at IS NOT NULL OR (r.priority = 'bulk' AND j.bulk_paused_at IS NOT NULL) AS held
      FROM job_revisions r JOIN jobs j ON j.job_id = r.job_id
       AND r.revision_id IN (j.revision_id, j.building_revision_id)
     WHERE r.source ->> 'kind' = 'always_on' AND j.active
       AND NOT EXISTS (SELECT FROM pauses p WHERE p.job_id = j.job_id AND p.by_job_id IS NULL
                          AND (p.tier = 'normal' OR r.priority = 'bulk'))
     ORDER BY j.job_id, r.generation_hash, r.revision_id = j.revision_id
), mine AS MATERIALIZED (
    SELECT t.task_id, t.job_id, t.revision_id, t.status, t.attempt, t.cancel_requested, t.retry_at,
           t.finished_at, w.revision_id AS wanted_revision
      FROM (SELECT DISTINCT job_id, generation_hash FROM job_revisions
             WHERE source ->> 'kind' = 'always_on') k
      JOIN tasks t ON t.job_id = k.job_id AND t.dedupe_key = 'always_on:' || k.generation_hash
      LEFT JOIN wanted w ON w.job_id = k.job_id AND w.generation_hash = k.generation_hash
)
"""
# Removed, paused by a person, or of a definition that has changed: what runs is told, what waits
# ends. A queue that pushes back stops nobody: what runs is held, and what does not run waits.
_STOP = (
    _WANTED
    + """
UPDATE tasks t
   SET status = CASE t.status WHEN 'Running' THEN t.status ELSE 'Canceled' END,
       finished_at = CASE t.status WHEN 'Running' THEN t.finished_at ELSE now() END,
       cause = CASE t.status WHEN 'Running' THEN t.cause END,  -- no late reply brings it back
       cancel_requested = true, retry_at = NULL
  FROM mine m
 WHERE t.task_id = m.task_id AND m.wanted_revision IS DISTINCT FROM m.revision_id
   AND ((t.status IN ('Queued', 'Running') AND NOT t.cancel_requested)
        OR t.retry_at IS NOT NULL)
RETURNING t.task_id
"""
)
# Nothing starts while another generation of the same job still runs that shall not.
_FREE: LiteralString = """
    NOT EXISTS (SELECT FROM mine o WHERE o.job_id = w.job_id AND o.status = 'Running'
                   AND o.wanted_revision IS NULL)
"""
_WAKE: LiteralString = """
, woken AS (
    SELECT count(*) FROM enqueue(ARRAY(SELECT wake_entry(task_id, runtime) FROM started))
)
SELECT task_id FROM started CROSS JOIN woken
"""
_START = (
    _WANTED
    + """
SELECT task_id FROM create_tasks(ARRAY(
    SELECT new_task(w.org_id, w.job_id, w.revision_id, w.runtime, w.bulk,
                    'always_on:' || w.generation_hash, %(many)s, NULL, %(year)s,
                    w.heartbeat_timeout_seconds)
      FROM wanted w
     WHERE NOT w.held AND """
    + _FREE
    + "))"
)
# The wait grows with the attempts that ended a short while ago: one that ran for days is one.
_RESTART = (
    _WANTED
    + """
, ended AS (
    SELECT m.task_id, w.revision_id, w.runtime, w.bulk, w.heartbeat_timeout_seconds,
           coalesce(m.finished_at, h.last, '-infinity') AS since, h.recent
      FROM mine m JOIN wanted w ON w.job_id = m.job_id AND w.revision_id = m.wanted_revision
     CROSS JOIN LATERAL (
           SELECT max(a.ended_at) AS last,
                  count(*) FILTER (WHERE a.ended_at > now() - %(window)s) AS recent
             FROM task_attempts a WHERE a.task_id = m.task_id AND a.attempt > m.attempt - 20) h
     WHERE m.status IN ('Completed', 'Failed', 'Canceled') AND NOT w.held AND """
    + _FREE
    + """
), started AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = t.attempt + 1, queued_at = now(), retry_at = NULL,
           revision_id = e.revision_id, runtime = e.runtime, bulk = e.bulk,
           lease_seconds = e.heartbeat_timeout_seconds, timeout_seconds = %(year)s,
           lease_token = NULL, lease_expires_at = NULL, deadline_at = NULL, worker_id = NULL,
           started_at = NULL, finished_at = NULL, completion_hash = NULL, cause = NULL,
           cancel_requested = false, abandoned = false,
           cursor_value = (SELECT max(v.cursor_value) FROM events v
                            WHERE v.producer_task_id = t.task_id AND v.cursor_value IS NOT NULL)
      FROM ended e
     WHERE t.task_id = e.task_id AND t.status IN ('Completed', 'Failed', 'Canceled')
       AND e.since + least(%(most)s::interval,
                           %(first)s::interval * (2 ^ greatest(0, e.recent - 1)))
           * least(1, e.recent)::float8 <= now()
    RETURNING t.task_id, t.runtime
)
"""
    + _WAKE
)


@dataclass(frozen=True)
class Supervised:
    """What one look at the sources did, by task."""

    stopped: list[UUID]
    started: list[UUID]
    restarted: list[UUID]

    def __bool__(self) -> bool:
        return bool(self.stopped or self.started or self.restarted)


async def supervise(
    conn: Conn, *, first: timedelta, most: timedelta, window: timedelta
) -> Supervised:
    """Stop, start and restart what should not, should, or should still run."""
    row = await (await conn.execute(_ALONE)).fetchone()
    if row is None or not row[0]:
        return Supervised([], [], [])
    values = {"many": _MANY, "year": _YEAR, "first": first, "most": most, "window": window}
    done: list[list[UUID]] = []
    for query in (_STOP, _START, _RESTART):
        cursor = await conn.execute(query, values)
        done.append([row[0] for row in await cursor.fetchall()])
    return Supervised(*done)
