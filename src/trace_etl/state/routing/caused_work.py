"""Report the progress of what a trigger or a deploy caused: its events, tasks and everything downstream."""

from collections.abc import Sequence
from uuid import UUID

from trace_etl.api.user.triggers import CausedFailure, CausedWork
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one

_MAX_FAILURES = 20

_FIND_DAG = "SELECT dag_id FROM dags WHERE org_id = %(org_id)s AND name = %(dag)s"
# A task of an always_on source never ends, so nothing waits for it.
_COUNT = """
WITH work AS MATERIALIZED (
    SELECT * FROM caused_work(%(dag_id)s, %(event_ids)s::uuid[], %(task_ids)s::uuid[])
), task AS (
    SELECT t.status, t.retry_at IS NOT NULL AS is_waiting
      FROM work w JOIN tasks t ON t.task_id = w.task_id
     WHERE t.org_id = %(org_id)s AND t.dedupe_key NOT LIKE 'always_on:%%'
), event AS (
    SELECT e.routed_at, EXISTS (SELECT FROM deferred_events d
                                 WHERE d.event_id = e.event_id) AS is_deferred
      FROM work w JOIN events e ON e.event_id = w.event_id
     WHERE e.org_id = %(org_id)s
)
SELECT count(*) FILTER (WHERE status = 'Queued') AS queued,
       count(*) FILTER (WHERE status = 'Running') AS running,
       count(*) FILTER (WHERE status = 'Failed' AND is_waiting) AS retrying,
       count(*) FILTER (WHERE status = 'Completed') AS completed,
       count(*) FILTER (WHERE status = 'Failed' AND NOT is_waiting) AS failed,
       count(*) FILTER (WHERE status = 'Canceled') AS canceled,
       (SELECT count(*) FROM event WHERE routed_at IS NULL AND NOT is_deferred) AS unrouted,
       (SELECT count(*) FROM event WHERE is_deferred) AS deferred
  FROM task
"""
_FAILURES = """
SELECT t.task_id, t.dag, t.job, t.partition_key, t.status, t.error_code, t.error_message
  FROM caused_work(%(dag_id)s, %(event_ids)s::uuid[], %(task_ids)s::uuid[]) w
  JOIN task_details t ON t.task_id = w.task_id
 WHERE t.org_id = %(org_id)s AND t.status IN ('Failed', 'Canceled') AND t.retry_at IS NULL
 ORDER BY t.finished_at LIMIT %(limit)s
"""


async def read_progress(
    conn: Conn, org_id: UUID, dag: str, event_ids: Sequence[UUID], task_ids: Sequence[UUID]
) -> CausedWork:
    """Count the events and tasks of a DAG that the given ones caused. Raises NotFound."""
    row = await (await conn.execute(_FIND_DAG, {"org_id": org_id, "dag": dag})).fetchone()
    if row is None:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    values = {
        "org_id": org_id,
        "dag_id": row[0],
        "event_ids": list(event_ids),
        "task_ids": list(task_ids),
        "limit": _MAX_FAILURES,
    }
    work = await fetch_one(conn, CausedWork, _COUNT, values)
    assert work is not None  # an aggregate returns one row
    if not work.failed + work.canceled:
        return work
    failures = await fetch_all(conn, CausedFailure, _FAILURES, values)
    return work.model_copy(update={"failures": failures})


# A transaction has one time: what a deploy creates has the time of its rollout.
_FIND_INITIAL = """
SELECT ARRAY(SELECT e.event_id FROM events e JOIN tasks t ON t.task_id = e.producer_task_id
               JOIN jobs j ON j.job_id = t.job_id
              WHERE j.dag_id = r.dag_id AND e.accepted_at = r.started_at),
       ARRAY(SELECT t.task_id FROM jobs j JOIN tasks t ON t.job_id = j.job_id
              WHERE j.dag_id = r.dag_id AND t.created_at = r.started_at
                AND t.org_id = g.org_id)
  FROM rollouts r JOIN dags g USING (dag_id)
 WHERE g.org_id = %(org_id)s AND r.rollout_id = %(rollout_id)s
"""


async def read_initial_progress(conn: Conn, org_id: UUID, dag: str, rollout_id: UUID) -> CausedWork:
    """Count the events and tasks that a deploy created, and everything that they caused."""
    values = {"org_id": org_id, "rollout_id": rollout_id}
    row = await (await conn.execute(_FIND_INITIAL, values)).fetchone()
    event_ids, task_ids = row or ([], [])
    return await read_progress(conn, org_id, dag, event_ids, task_ids)
