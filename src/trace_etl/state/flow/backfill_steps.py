"""Steps of a backfill: create tasks of chunks, record their results, cancel, resume."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg.errors import UniqueViolation

from trace_etl.model.errors import Conflict, NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one


@dataclass(frozen=True)
class RunningBackfill:
    """A running backfill, locked for a step."""

    backfill_id: UUID
    is_current: bool
    """Whether the job still writes the generation that the backfill was requested for."""
    is_paused: bool
    max_queue_depth: int | None
    created: int
    """Chunks whose task has been created and has not ended."""
    is_source: bool
    """Whether the job is a source: its chunks are events to emit, not tasks to run."""


_LOCK_NEXT = """
SELECT b.backfill_id, j.active AND r.generation_hash = b.generation_hash AS is_current,
       is_paused(j, true) AS is_paused, r.max_queue_depth,
       (SELECT count(*) FROM backfill_chunks c
         WHERE c.backfill_id = b.backfill_id AND c.state = 'created') AS created,
       r.activation = 'source' AS is_source
  FROM backfills b JOIN jobs j USING (job_id) JOIN job_revisions r ON r.revision_id = j.revision_id
 WHERE b.state = 'running' AND b.backfill_id > %(after)s
 ORDER BY b.backfill_id LIMIT 1
   FOR UPDATE OF b SKIP LOCKED
"""


async def lock_next(conn: Conn, after: UUID) -> RunningBackfill | None:
    """Lock the next running backfill that no other replica has locked, in the order of ids."""
    return await fetch_one(conn, RunningBackfill, _LOCK_NEXT, {"after": after})


async def has_running(conn: Conn) -> bool:
    query = "SELECT EXISTS (SELECT FROM backfills WHERE state = 'running')"
    row = await (await conn.execute(query)).fetchone()
    return bool(row and row[0])


# A missing task was deleted by retention. Its result is unknown, so its chunk becomes canceled. A task that
# completed without publishing its outputs has left blocks without a partition: its chunk has failed.
_SETTLE_CHUNKS = """
UPDATE backfill_chunks c
   SET state = CASE WHEN t.status = 'Completed' AND b.keeps_partitions AND lacks_partition(t)
                    THEN 'failed'
                    WHEN t.status = 'Completed' THEN 'completed'
                    WHEN t.status = 'Failed' THEN 'failed'
                    ELSE 'canceled' END,
       settled_at = coalesce(t.finished_at, now()),
       row_count = coalesce((SELECT sum(p.row_count) FROM partitions p
                              WHERE p.task_id = t.task_id AND t.status = 'Completed'), c.row_count)
  FROM backfill_chunks o JOIN backfills b USING (backfill_id)
  LEFT JOIN tasks t ON t.task_id = o.task_id
 WHERE o.backfill_id = %(backfill_id)s AND o.state = 'created'
   AND c.backfill_id = o.backfill_id AND c.range_start = o.range_start
   AND (t.task_id IS NULL OR t.status IN ('Completed', 'Canceled')
        OR (t.status = 'Failed' AND t.retry_at IS NULL))
"""


async def settle_chunks(conn: Conn, backfill_id: UUID) -> int:
    """Record the results of tasks that have ended. Returns how many chunks changed."""
    return (await conn.execute(_SETTLE_CHUNKS, {"backfill_id": backfill_id})).rowcount


_CREATE = """
WITH created AS (
    SELECT task_id, range_start FROM create_tasks(ARRAY(
           SELECT n FROM next_backfill_tasks(%(backfill_id)s, %(limit)s) n))
)
UPDATE backfill_chunks c SET state = 'created', task_id = t.task_id, own = true
  FROM created t
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = t.range_start
"""
# For chunks whose dedupe key belongs to an existing task. A task that waits, runs or is completed is used
# unchanged. A task that failed permanently is retried. A task that was canceled, or that completed without
# publishing its outputs, gets another key, so that `_CREATE` can create a new task.
_TAKE_OVER = """
WITH existing AS (
    SELECT n.range_start, n.max_attempts, t.task_id, t.status, t.retry_at,
           t.status = 'Canceled' OR (t.status = 'Completed' AND b.keeps_partitions
                                     AND lacks_partition(t)) AS is_replaced
      FROM backfills b CROSS JOIN next_backfill_tasks(b.backfill_id, %(limit)s) n
      JOIN tasks t ON t.job_id = n.job_id AND t.dedupe_key = n.dedupe_key
     WHERE b.backfill_id = %(backfill_id)s
), retried AS (
    UPDATE tasks t
       SET retry_at = now(), finished_at = NULL, max_attempts = t.attempt + e.max_attempts,
           bulk = true
      FROM existing e
     WHERE t.task_id = e.task_id AND e.status = 'Failed' AND e.retry_at IS NULL
), renamed AS (
    UPDATE tasks t SET dedupe_key = concat(t.dedupe_key, ':', lower(t.status), ':', t.task_id)
      FROM existing e
     WHERE t.task_id = e.task_id AND e.is_replaced
)
UPDATE backfill_chunks c
   SET state = 'created', task_id = e.task_id, own = e.status = 'Failed' AND e.retry_at IS NULL
  FROM existing e
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = e.range_start
   AND NOT e.is_replaced
"""


async def create_tasks(conn: Conn, backfill_id: UUID, *, limit: int) -> int:
    """Create tasks for the next chunks, or use existing tasks. Returns how many chunks got a task."""
    values = {"backfill_id": backfill_id, "limit": limit}
    taken_over = (await conn.execute(_TAKE_OVER, values)).rowcount
    created = await conn.execute(_CREATE, {**values, "limit": limit - taken_over})
    return taken_over + created.rowcount


_EMIT_CHUNKS = """
WITH pending AS (
    SELECT b.org_id, b.job_id, j.revision_id, b.dataset_uuid, b.dataset_version,
           c.range_start, c.range_end, p.partition_key,
           concat('trigger:', b.dataset_version, ':', p.partition_key) AS dedupe_key
      FROM backfills b JOIN jobs j USING (job_id) CROSS JOIN LATERAL (
           SELECT * FROM backfill_chunks c
            WHERE c.backfill_id = b.backfill_id AND c.state = 'pending'
            ORDER BY c.range_start LIMIT %(limit)s) c
     CROSS JOIN LATERAL (
           SELECT format('%%s-%%s', c.range_start, c.range_end) AS partition_key) p
     WHERE b.backfill_id = %(backfill_id)s
), emitted AS (
    SELECT range_start, producer_task_id AS task_id FROM emit_source_events(ARRAY(
           SELECT finished_task(org_id, job_id, revision_id, true, dedupe_key, dataset_uuid,
                                dataset_version, partition_key, range_start, range_end)
             FROM pending))
)
UPDATE backfill_chunks c
   SET state = 'completed', settled_at = now(), own = e.task_id IS NOT NULL,
       task_id = coalesce(e.task_id, (
           SELECT t.task_id FROM tasks t
            WHERE t.job_id = s.job_id AND t.dedupe_key = s.dedupe_key))
  FROM pending s LEFT JOIN emitted e USING (range_start)
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = s.range_start
"""


async def emit_chunks(conn: Conn, backfill_id: UUID, *, limit: int) -> int:
    """Emit the events of the next chunks of a source, each at most once. Returns how many."""
    values = {"backfill_id": backfill_id, "limit": limit}
    return (await conn.execute(_EMIT_CHUNKS, values)).rowcount


_FINISH = """
UPDATE backfills b
   SET state = CASE WHEN EXISTS (SELECT FROM backfill_chunks c
                                  WHERE c.backfill_id = b.backfill_id
                                    AND c.state IN ('failed', 'canceled'))
                    THEN 'failed' ELSE 'complete' END,
       ended_at = now()
 WHERE b.backfill_id = %(backfill_id)s AND b.state = 'running'
   AND NOT EXISTS (SELECT FROM backfill_chunks c WHERE c.backfill_id = b.backfill_id
                      AND c.state IN ('pending', 'created'))
RETURNING b.state
"""


async def finish(conn: Conn, backfill_id: UUID) -> str | None:
    """End a backfill whose chunks have all ended. Returns its final state, or None if it continues."""
    row = await (await conn.execute(_FINISH, {"backfill_id": backfill_id})).fetchone()
    return row[0] if row else None


_LOCK = """
SELECT state FROM backfills WHERE backfill_id = %(backfill_id)s AND org_id = %(org_id)s FOR UPDATE
"""
# A canceled task gets another dedupe key, so that a later event can create a task of the same scope.
_CANCEL_TASKS = """
UPDATE tasks t
   SET status = CASE t.status WHEN 'Running' THEN t.status ELSE 'Canceled' END,
       finished_at = CASE t.status WHEN 'Running' THEN t.finished_at ELSE now() END,
       cause = CASE t.status WHEN 'Running' THEN t.cause END,
       retry_at = NULL, cancel_requested = true, error_message = %(why)s,
       dedupe_key = concat(t.dedupe_key, ':canceled:', t.task_id)
  FROM backfill_chunks c
 WHERE c.backfill_id = %(backfill_id)s AND c.state = 'created' AND c.own
   AND t.task_id = c.task_id
   AND (t.status IN ('Queued', 'Running') OR t.retry_at IS NOT NULL)
RETURNING t.status
"""
_CANCEL_CHUNKS = """
UPDATE backfill_chunks SET state = 'canceled', settled_at = now()
 WHERE backfill_id = %(backfill_id)s AND state IN ('pending', 'created')
"""
_CANCEL = """
UPDATE backfills SET state = 'canceled', ended_at = now(), why = %(why)s
 WHERE backfill_id = %(backfill_id)s
"""


@dataclass(frozen=True)
class CanceledTasks:
    """How many tasks a cancellation concerned."""

    tasks: int
    running: int
    """How many of them run and were asked to stop."""


async def cancel(conn: Conn, backfill_id: UUID, reason: str) -> CanceledTasks:
    """End a running backfill. Waiting tasks are canceled, running ones are asked to stop."""
    await settle_chunks(conn, backfill_id)
    values = {"backfill_id": backfill_id, "why": reason}
    statuses = [row[0] for row in await (await conn.execute(_CANCEL_TASKS, values)).fetchall()]
    await conn.execute(_CANCEL_CHUNKS, values)
    await conn.execute(_CANCEL, values)
    return CanceledTasks(len(statuses), statuses.count("Running"))


async def lock(conn: Conn, org_id: UUID, backfill_id: UUID) -> str:
    """Lock a backfill until commit and return its state. Raises NotFound."""
    values = {"backfill_id": backfill_id, "org_id": org_id}
    row = await (await conn.execute(_LOCK, values)).fetchone()
    if row is None:
        raise NotFound(f"no backfill {backfill_id}; `trace backfills` lists them")
    return row[0]


_RESUME_CHUNKS = """
UPDATE backfill_chunks SET state = 'pending', task_id = NULL, own = false, settled_at = NULL
 WHERE backfill_id = %(backfill_id)s AND state IN ('failed', 'canceled')
"""
_RESUME = """
UPDATE backfills SET state = 'running', ended_at = NULL, why = '', rounds = rounds + 1,
       started_at = now()
 WHERE backfill_id = %(backfill_id)s
"""


async def resume(conn: Conn, backfill_id: UUID) -> int:
    """Try failed and canceled chunks again. Returns how many. Raises Conflict."""
    values = {"backfill_id": backfill_id}
    resumed = (await conn.execute(_RESUME_CHUNKS, values)).rowcount
    try:
        await conn.execute(_RESUME, values)
    except UniqueViolation as error:
        raise Conflict(
            "another backfill of the same range is running; wait for it or cancel it"
        ) from error
    return resumed


# One per call: a backfill may have a hundred thousand chunks.
_DELETE_ENDED = """
DELETE FROM backfills WHERE backfill_id = (
    SELECT backfill_id FROM backfills WHERE ended_at < now() - %(older_than)s
     ORDER BY ended_at LIMIT 1 FOR UPDATE SKIP LOCKED)
"""


async def delete_ended(conn: Conn, *, older_than: timedelta) -> int:
    """Delete one backfill that ended before the retention time, with its chunks. Returns how many."""
    return (await conn.execute(_DELETE_ENDED, {"older_than": older_than})).rowcount
