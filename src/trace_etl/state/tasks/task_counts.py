"""Count the tasks of each job by status.

Ended tasks are added up once: the table `task_tallies` has the totals of every task that changed before
the mark in `task_tally_marks`. A query adds the tasks that changed since then, and subtracts
`task_tally_corrections`: tasks that had ended and then continued or were deleted.
"""

from uuid import UUID

from trace_etl.api.user.tasks.tasks import JobTaskCounts
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

# Not a part of `_COUNT_TASKS`: the planner must know the value of the mark to expect few rows.
_READ_MARK = """
SELECT counted_to::text FROM task_tally_marks WHERE org_id = %(org_id)s
"""
_COUNT_TASKS = """
WITH chosen AS MATERIALIZED (
    SELECT j.job_id, g.name AS dag, j.name AS job FROM dags g JOIN jobs j USING (dag_id)
     WHERE g.org_id = %(org_id)s AND j.active AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
), counted AS (
    SELECT job_id, status, n FROM task_tallies WHERE job_id IN (SELECT job_id FROM chosen)
     UNION ALL
    SELECT t.job_id, t.status, count(*) FROM tasks t
     WHERE t.org_id = %(org_id)s AND t.changed_xid >= %(mark)s::xid8
       AND t.status IN ('Completed', 'Failed', 'Canceled')
     GROUP BY t.job_id, t.status
     UNION ALL
    SELECT c.job_id, c.status, -count(*) FROM task_tally_corrections c
     WHERE c.org_id = %(org_id)s AND c.changed_xid < %(mark)s::xid8
     GROUP BY c.job_id, c.status
     UNION ALL
    SELECT t.job_id, t.status, count(*) FROM chosen JOIN tasks t USING (job_id)
     WHERE t.status IN ('Queued', 'Running')
     GROUP BY t.job_id, t.status
)
SELECT c.dag, c.job,
       coalesce(sum(n) FILTER (WHERE status = 'Queued'), 0)::bigint AS queued,
       coalesce(sum(n) FILTER (WHERE status = 'Running'), 0)::bigint AS running,
       coalesce(sum(n) FILTER (WHERE status = 'Completed'), 0)::bigint AS completed,
       coalesce(sum(n) FILTER (WHERE status = 'Failed'), 0)::bigint AS failed,
       coalesce(sum(n) FILTER (WHERE status = 'Canceled'), 0)::bigint AS canceled
  FROM chosen c LEFT JOIN counted USING (job_id)
 GROUP BY c.dag, c.job ORDER BY c.dag, c.job
"""


async def count_tasks(conn: Conn, org_id: UUID, dag: str | None) -> list[JobTaskCounts]:
    """Count tasks by job and status.

    Call it in one snapshot, so that the mark does not move between its two queries.
    """
    values = {"org_id": org_id, "dag": dag, "mark": await _read_mark(conn, org_id)}
    return await fetch_all(conn, JobTaskCounts, _COUNT_TASKS, values)


async def _read_mark(conn: Conn, org_id: UUID) -> str:
    row = await (await conn.execute(_READ_MARK, {"org_id": org_id})).fetchone()
    return row[0] if row else "0"


_CREATE_MARKS = """
INSERT INTO task_tally_marks (org_id, counted_to)
SELECT o.org_id, '0'::xid8 FROM orgs o
 WHERE NOT EXISTS (SELECT FROM task_tally_marks m WHERE m.org_id = o.org_id)
ON CONFLICT DO NOTHING
"""
_LOCK_MARKS = "SELECT org_id FROM task_tally_marks ORDER BY org_id FOR UPDATE SKIP LOCKED"
# The mark moves at most to the oldest transaction that still runs: no later commit has a smaller id.
#
# A correction has the id of the transaction that ended its task. If the id is before the old mark, the end
# was counted and is subtracted. If the id is between the old and the new mark, the end was not counted and
# is not in this batch, because the task's row has changed since.
_ADVANCE_MARK = """
WITH batch_end AS (
    SELECT (t.changed_xid::text::numeric + 1)::text::xid8 AS counted_to FROM tasks t
     WHERE t.org_id = %(org_id)s AND t.changed_xid >= %(mark)s::xid8
     ORDER BY t.changed_xid OFFSET %(limit)s - 1 LIMIT 1
), bound AS MATERIALIZED (
    SELECT least(pg_snapshot_xmin(pg_current_snapshot()), (SELECT counted_to FROM batch_end))
           AS counted_to
), ended AS (
    SELECT t.job_id, t.status, count(*) AS n FROM tasks t
     WHERE t.org_id = %(org_id)s AND t.changed_xid >= %(mark)s::xid8
       AND t.changed_xid < (SELECT counted_to FROM bound)
       AND t.status IN ('Completed', 'Failed', 'Canceled')
     GROUP BY t.job_id, t.status
), corrected AS (
    DELETE FROM task_tally_corrections c
     WHERE c.org_id = %(org_id)s AND c.changed_xid < (SELECT counted_to FROM bound)
    RETURNING c.job_id, c.status, c.changed_xid < %(mark)s::xid8 AS was_counted
), added AS (
    INSERT INTO task_tallies AS t (job_id, status, n)
    SELECT job_id, status, sum(n)
      FROM (SELECT * FROM ended
             UNION ALL
            SELECT job_id, status, -1 FROM corrected WHERE was_counted) changes
     GROUP BY job_id, status
    ON CONFLICT (job_id, status) DO UPDATE SET n = t.n + EXCLUDED.n
), moved AS (
    UPDATE task_tally_marks SET counted_to = (SELECT counted_to FROM bound)
     WHERE org_id = %(org_id)s AND counted_to < (SELECT counted_to FROM bound)
)
SELECT EXISTS (SELECT FROM batch_end)
"""


async def advance_counts(conn: Conn, *, limit: int) -> int:
    """Count about `limit` more ended tasks of every org. Returns how many orgs have more."""
    await conn.execute(_CREATE_MARKS)
    orgs = [row[0] for row in await (await conn.execute(_LOCK_MARKS)).fetchall()]
    more = 0
    for org_id in orgs:  # one statement per org, because its snapshot must be newer than the lock
        values = {"org_id": org_id, "limit": limit, "mark": await _read_mark(conn, org_id)}
        row = await (await conn.execute(_ADVANCE_MARK, values)).fetchone()
        more += bool(row and row[0])
    return more
