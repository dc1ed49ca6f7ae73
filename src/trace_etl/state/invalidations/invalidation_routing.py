"""Route invalidations: create the tasks that rebuild invalid outputs."""

from uuid import UUID

from trace_etl.state.db.pool import Conn

_MARK_ROUTED = """
UPDATE invalidations SET routed_at = now() WHERE invalidation_id = ANY(%(invalidation_ids)s)
"""
# The scopes are text: Python does not read them, it only passes them to the next statements.
_FIND_SCOPES = """
SELECT coalesce(jsonb_agg(s), '[]')::text FROM rerun_scopes(%(invalidation_ids)s) s
"""
# A dataset with cursors emits events for the rewritten blocks again. Their cursors are not after the
# positions of the consumers, so the positions move back.
_REWIND_CURSORS = """
UPDATE consumer_cursors k SET cursor_value = w.first_block - 1, advanced_at = now()
  FROM (SELECT r.job_id, r.generation_hash, r.dataset_version,
               least(min(r.range_start), min(s.range_start)) AS first_block
          FROM invalidation_readers(%(invalidation_ids)s) r
          LEFT JOIN jsonb_populate_recordset(NULL::rerun_scope, %(scopes)s::jsonb) s
         USING (invalidation_id, revision_id)
         WHERE r.kind = 'row_range'
         GROUP BY r.job_id, r.generation_hash, r.dataset_version) w
 WHERE k.job_id = w.job_id AND k.generation_hash = w.generation_hash
   AND k.dataset_version = w.dataset_version AND k.cursor_value >= w.first_block
"""
# If a task of the same scope is queued, it will read the rewrite, so no second task is created. Otherwise
# the number of reruns would double wherever two branches of the graph join.
_CREATE_TASKS = """
WITH scope AS (
    SELECT r.*, s.partition_key AS scope_key, s.range_start AS scope_start,
           s.range_end AS scope_end, s.cursor_value,
           row_number() OVER (
               PARTITION BY r.revision_id, r.is_rewrite, s.partition_key, s.cursor_value
               ORDER BY r.invalidation_id) AS place
      FROM jsonb_populate_recordset(NULL::rerun_scope, %(scopes)s::jsonb) s
      JOIN invalidation_readers(%(invalidation_ids)s) r USING (invalidation_id, revision_id)
), wanted AS (
    SELECT s.* FROM scope s
     WHERE NOT s.is_rewrite OR (
           s.place = 1
           AND NOT EXISTS (
               SELECT FROM tasks w
                WHERE w.job_id = s.job_id AND w.partition_key = s.scope_key
                  AND w.status = 'Queued' AND w.invalidation_id IS NOT NULL
                  AND NOT w.cancel_requested
                  AND split_part(w.dedupe_key, ':', 3) = s.generation_hash)
           AND NOT EXISTS (
               SELECT FROM job_inputs i
                 JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
                 JOIN tasks w ON w.job_id = s.job_id
                  AND w.dedupe_key = concat_ws(':', i.dataset_uuid, input_generation(i, d),
                                               s.generation_hash, 'p:' || s.scope_key)
                WHERE i.revision_id = s.revision_id AND w.status = 'Queued'
                  AND NOT w.cancel_requested))
)
SELECT create_rerun_tasks(ARRAY(
    SELECT new_task(s.org_id, s.job_id, s.revision_id, s.runtime, s.bulk,
                    concat_ws(':', 'i', s.invalidation_id, s.generation_hash,
                              coalesce('p:' || s.scope_key, 'c:' || s.cursor_value)),
                    s.max_attempts, s.max_concurrency, s.timeout_seconds,
                    s.heartbeat_timeout_seconds, s.dataset_uuid, s.dataset_version, s.scope_key,
                    s.scope_start, s.scope_end, s.cursor_value, s.invalidation_id)
      FROM wanted s))
"""


async def route(conn: Conn, invalidation_ids: list[UUID]) -> list[UUID]:
    """Create the consumers' tasks for invalidations. Returns the ids of the tasks."""
    values: dict[str, object] = {"invalidation_ids": invalidation_ids}
    await conn.execute(_MARK_ROUTED, values)
    scopes = await (await conn.execute(_FIND_SCOPES, values)).fetchone()
    values["scopes"] = scopes[0] if scopes else "[]"
    await conn.execute(_REWIND_CURSORS, values)
    return [row[0] for row in await (await conn.execute(_CREATE_TASKS, values)).fetchall()]
