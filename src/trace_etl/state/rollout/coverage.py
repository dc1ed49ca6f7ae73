"""Check whether the new generations of a rollout cover everything that the old ones hold."""

from uuid import UUID

from trace_etl.state.db.pool import Conn

_UNCOVERED = """
SELECT count(*) + (SELECT count(*) FROM refreshing_dags JOIN rollouts r USING (dag_id)
                    WHERE r.rollout_id = %(rollout_id)s),
       pg_current_snapshot()::text
  FROM rollout_coverage
 WHERE rollout_id = %(rollout_id)s
   AND (NOT isempty(missing_ranges) OR missing_keys <> '{}'
        OR (old_cursor IS NOT NULL AND coalesce(new_cursor < old_cursor, true)))
"""


async def find_covered_snapshot(conn: Conn, rollout_id: UUID) -> str | None:
    """Return the snapshot in which the new generations cover the old ones, or None."""
    row = await (await conn.execute(_UNCOVERED, {"rollout_id": rollout_id})).fetchone()
    return row[1] if row is not None and row[0] == 0 else None


# Reads only the partitions that the old generations gained since the snapshot. The caller holds a lock
# on the table, so the statement must be fast for any number of partitions.
_GAINED = """
SELECT count(*)
  FROM rollout_targets g JOIN dataset_versions v ON v.dataset_version = g.to_version
  JOIN partitions p ON p.dataset_version = g.from_version
   AND p.commit_xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
   AND NOT pg_visible_in_snapshot(p.commit_xid, %(snapshot)s::pg_snapshot)
 WHERE g.rollout_id = %(rollout_id)s
   AND NOT CASE WHEN p.range_start IS NULL
       THEN EXISTS (SELECT FROM partitions q WHERE q.dataset_version = g.to_version
                       AND q.partition_key = p.partition_key)
       ELSE coalesce(int8range(p.range_start, p.range_end, '[]') <@ (
            SELECT range_agg(int8range(q.range_start, q.range_end, '[]')) FROM partitions q
             WHERE q.dataset_version = g.to_version
               AND overlaps_blocks(q, v.generation_no, p.range_start, p.range_end)
            ), false) END
"""


async def has_new_gaps(conn: Conn, rollout_id: UUID, snapshot: str) -> bool:
    """Return whether the old generations gained a partition since the snapshot that the new ones lack."""
    values = {"rollout_id": rollout_id, "snapshot": snapshot}
    row = await (await conn.execute(_GAINED, values)).fetchone()
    return row is None or row[0] > 0


_IDLE = """
SELECT j.building_revision_id FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND j.building_revision_id IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM building_tasks t
        WHERE t.dag_id = %(dag_id)s
          AND (t.status IN ('Queued', 'Running')
               OR (t.status = 'Failed' AND t.retry_at IS NOT NULL)))
"""


async def list_idle_revisions(conn: Conn, dag_id: UUID) -> list[UUID]:
    """List the revisions being built; none while one of their tasks is queued, running or to be retried."""
    rows = await (await conn.execute(_IDLE, {"dag_id": dag_id})).fetchall()
    return [row[0] for row in rows]
