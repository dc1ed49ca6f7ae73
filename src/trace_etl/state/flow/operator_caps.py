"""Store how many tasks of an operator may run concurrently, over all jobs."""

from collections.abc import Mapping

from trace_etl.state.db.pool import Conn

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.operator_caps', 0))"
_DELETE_OTHERS = "DELETE FROM operator_caps WHERE operator <> ALL(%(operators)s)"
_UPSERT = """
INSERT INTO operator_caps (operator, cap)
SELECT * FROM unnest(%(operators)s::text[], %(caps)s::int[])
ON CONFLICT (operator) DO UPDATE SET cap = EXCLUDED.cap
"""
_UPDATE_JOBS = """
UPDATE jobs j SET capped_operator = c.operator
  FROM job_revisions r LEFT JOIN operator_caps c ON c.operator = r.operator
 WHERE r.revision_id = j.revision_id AND j.capped_operator IS DISTINCT FROM c.operator
"""
_WAKE = """
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT DISTINCT ON (j.capped_operator) outbox_entry('wake_next', j.job_id)
      FROM jobs j WHERE j.capped_operator IS NOT NULL AND j.active
     ORDER BY j.capped_operator, j.job_id))
"""


async def replace_caps(conn: Conn, caps: Mapping[str, int]) -> None:
    """Replace all caps and update the deployed jobs. A deploy reads the caps for new jobs."""
    await conn.execute(_LOCK)
    values = {"operators": list(caps), "caps": list(caps.values())}
    await conn.execute(_DELETE_OTHERS, values)
    await conn.execute(_UPSERT, values)
    await conn.execute(_UPDATE_JOBS)
    await conn.execute(_WAKE)  # tasks can start if a cap has increased
