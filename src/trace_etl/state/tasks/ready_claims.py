"""Claims that name no task: the oldest ready tasks of a runtime that have no cap."""

from uuid import UUID

from trace_etl.state.db.pool import Conn, rows_as_json
from trace_etl.state.tasks.claims import ClaimedTask

# `oldest` has the oldest tasks of all jobs. While any job is paused, it is empty: it would also have to read
# the queued tasks of paused jobs. `oldest_by_job` then has the oldest tasks of each job that is not paused.
# It skips this scan when nothing is queued for the runtime. It reads more candidates than slots, because
# other claims may lock the same tasks.
#
# A task takes the slot with its row number. A join would compare every task with every slot.
_CLAIM_OLDEST = """
WITH oldest AS (
    SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.runtime = %(runtime)s AND t.status = 'Queued' AND NOT t.cancel_requested
       AND t.max_concurrency IS NULL AND j.capped_operator IS NULL AND NOT is_held_by_check(t)
       AND NOT EXISTS (SELECT FROM jobs WHERE paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL)
     ORDER BY t.bulk, t.queued_at LIMIT %(limit)s::int FOR UPDATE OF t SKIP LOCKED
), candidates AS MATERIALIZED (
    SELECT * FROM uncapped_queue_beside_pauses(%(runtime)s, %(limit)s::int, 4 * %(limit)s::int)
), oldest_by_job AS (
    SELECT t.task_id FROM candidates c JOIN tasks t USING (task_id)
     WHERE t.status = 'Queued' AND NOT t.cancel_requested
     ORDER BY c.bulk, c.queued_at LIMIT %(limit)s::int FOR UPDATE OF t SKIP LOCKED
), next AS (
    SELECT task_id, row_number() OVER () AS n
      FROM (SELECT task_id FROM oldest UNION ALL SELECT task_id FROM oldest_by_job) both_ways
), slots AS MATERIALIZED (
    SELECT ARRAY(SELECT json_array_elements_text(%(workers)s::json)) AS workers,
           string_to_array(%(lease_tokens)s, ',') AS lease_tokens
), locked AS (
    SELECT task_id, workers[n] AS worker_id, lease_tokens[n]::uuid AS lease_token FROM next, slots
)
UPDATE tasks t
   SET status = 'Running', lease_token = l.lease_token, worker_id = l.worker_id,
       started_at = now(), pinned_snapshot = pg_current_snapshot(),
       lease_expires_at = now() + make_interval(secs => t.lease_seconds),
       deadline_at = now() + make_interval(secs => t.timeout_seconds)
  FROM locked l WHERE t.task_id = l.task_id AND t.status = 'Queued'
RETURNING t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
       t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
       t.range_start, t.range_end, t.cursor_value, t.invalidation_id,
       (SELECT json_agg(pin) FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version,
                                                t.range_start, t.range_end, t.partition_key,
                                                t.is_refresh))::text AS pins,
       t.parameters::text, t.is_refresh
"""


async def claim_ready(conn: Conn, runtime: str, slots: list[tuple[str, UUID]]) -> list[ClaimedTask]:
    """Start the oldest ready tasks of a runtime, one for each (worker, lease token)."""
    values = {
        "runtime": runtime,
        "limit": str(len(slots)),
        "workers": rows_as_json([worker for worker, _ in slots]),
        "lease_tokens": ",".join([token.hex for _, token in slots]),
    }
    return await conn.rows(_CLAIM_OLDEST, values, ClaimedTask._make)
