"""Find the tables in Postgres data of retired generations that may be dropped."""

from datetime import timedelta

from trace_etl.api.task.retired_tables import RetiredTables
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.storage import retired_generations

_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.retired_tables', 0))"
# The rows of a generation in Postgres state are deleted first: they claim that the rows of its tables exist.
_FIND_DROPPABLE = """
SELECT array_agg(hot_table_name(v.dataset_uuid, v.dataset_version)
                 ORDER BY v.dataset_version) AS tables,
       array_agg(v.dataset_version ORDER BY v.dataset_version) AS dataset_versions
  FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
 WHERE v.swept_at IS NOT NULL AND (d.job_id, v.generation_hash) IN (
       SELECT * FROM expired_generations(%(tables)s, %(retention)s))
 GROUP BY d.job_id, v.generation_hash
"""


async def find_droppable(
    conn: Conn, tables: list[str], *, retention: timedelta, limit: int
) -> list[RetiredTables]:
    """Return which of the given tables belong to generations unused for `retention`.

    The tables are grouped by generation of a job. Only one pass runs at a time over all replicas; a
    concurrent call returns an empty list.
    """
    row = await (await conn.execute(_LOCK)).fetchone()
    if row is None or not row[0]:
        return []
    await retired_generations.sweep(conn, retention=retention, org_id=None, limit=limit)
    values = {"tables": tables, "retention": retention}
    return await fetch_all(conn, RetiredTables, _FIND_DROPPABLE, values)
