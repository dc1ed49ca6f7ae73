"""Moving backfills on: making tasks of chunks, seeing how they end, canceling, trying again."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from trace_etl.model.errors import Conflict, NotFound
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class Running:
    """A backfill that is locked for a step."""

    backfill_id: UUID
    is_current: bool
    """The job still makes what is being filled."""
    is_paused: bool
    max_queue_depth: int | None
    created: int
    is_source: bool
    """Its chunks are events to emit, not tasks to run."""


_NEXT = """
SELECT b.backfill_id, j.active AND r.generation_hash = b.generation_hash AS is_current,
       j.paused_at IS NOT NULL OR j.bulk_paused_at IS NOT NULL AS is_paused, r.max_queue_depth,
       (SELECT count(*) FROM backfill_chunks c
         WHERE c.backfill_id = b.backfill_id AND c.state = 'created') AS created,
       r.activation = 'source' AS is_source
  FROM backfills b JOIN jobs j USING (job_id) JOIN job_revisions r ON r.revision_id = j.revision_id
 WHERE b.state = 'running' AND b.backfill_id > %(after)s
 ORDER BY b.backfill_id LIMIT 1
   FOR UPDATE OF b SKIP LOCKED
"""


async def lock_next(conn: Conn, after: UUID) -> Running | None:
    """The next running backfill that nobody else is at, in the order of their ids."""
    async with conn.cursor(row_factory=class_row(Running)) as cursor:
        await cursor.execute(_NEXT, {"after": after})
        return await cursor.fetchone()


async def any_running(conn: Conn) -> bool:
    """Whether there is any running backfill."""
    query = "SELECT EXISTS (SELECT FROM backfills WHERE state = 'running')"
    row = await (await conn.execute(query)).fetchone()
    return bool(row and row[0])


# A task that retention took with its generation has ended, one way or the other.
_SETTLE = """
UPDATE backfill_chunks c
   SET state = CASE t.status WHEN 'Completed' THEN 'completed' WHEN 'Failed' THEN 'failed'
                             ELSE 'canceled' END,
       settled_at = coalesce(t.finished_at, now()),
       row_count = coalesce((SELECT sum(p.row_count) FROM partitions p
                              WHERE p.task_id = t.task_id AND t.status = 'Completed'), c.row_count)
  FROM backfill_chunks o LEFT JOIN tasks t ON t.task_id = o.task_id
 WHERE o.backfill_id = %(backfill_id)s AND o.state = 'created'
   AND c.backfill_id = o.backfill_id AND c.range_start = o.range_start
   AND (t.task_id IS NULL OR t.status IN ('Completed', 'Canceled')
        OR (t.status = 'Failed' AND t.retry_at IS NULL))
"""


async def settle(conn: Conn, backfill_id: UUID) -> int:
    """Take note of the tasks that have ended. Returns how many."""
    return (await conn.execute(_SETTLE, {"backfill_id": backfill_id})).rowcount


# Whoever routes the same scope later finds the task there, by its key. A rebuild has a key of its
# own for every round.
_KEYED = """
WITH fill AS (
    SELECT b.*, r.revision_id, r.runtime, r.max_attempts, r.max_concurrency, r.timeout_seconds,
           r.heartbeat_timeout_seconds
      FROM backfills b JOIN jobs j USING (job_id)
      JOIN job_revisions r ON r.revision_id = j.revision_id
     WHERE b.backfill_id = %(backfill_id)s
), next AS (
    SELECT f.*, c.range_start AS first, c.range_end AS last,
           concat_ws(':', f.dataset_uuid, f.dataset_version, f.generation_hash,
                     format('p:%%s-%%s', c.range_start, c.range_end),
                     CASE c.action WHEN 'rebuild'
                          THEN format('rewrite:%%s:%%s', f.backfill_id, f.rounds) END) AS dedupe_key
      FROM fill f CROSS JOIN LATERAL (
           SELECT * FROM backfill_chunks c
            WHERE c.backfill_id = f.backfill_id AND c.state = 'pending'
            ORDER BY c.range_start LIMIT %(limit)s) c
)
"""
_CREATE = (
    _KEYED
    + """
, created AS (
    SELECT task_id, range_start FROM create_tasks(ARRAY(
           SELECT new_task(org_id, job_id, revision_id, runtime, true, dedupe_key, max_attempts,
                           max_concurrency, timeout_seconds, heartbeat_timeout_seconds,
                           dataset_uuid, dataset_version, format('%%s-%%s', first, last), first,
                           last)
             FROM next ORDER BY first))
)
UPDATE backfill_chunks c SET state = 'created', task_id = t.task_id, own = true
  FROM created t
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = t.range_start
"""
)
# Those whose key was taken. What waits, runs or was done by others counts; what failed for good is
# tried again; what was canceled gives its key away, so that the next step makes a task of its own.
_TAKE_OVER = (
    _KEYED
    + """
, standing AS (
    SELECT n.first, n.max_attempts, t.task_id, t.status, t.retry_at
      FROM next n JOIN tasks t ON t.job_id = n.job_id AND t.dedupe_key = n.dedupe_key
), again AS (
    UPDATE tasks t
       SET retry_at = now(), finished_at = NULL, max_attempts = t.attempt + s.max_attempts,
           bulk = true
      FROM standing s
     WHERE t.task_id = s.task_id AND s.status = 'Failed' AND s.retry_at IS NULL
), freed AS (
    UPDATE tasks t SET dedupe_key = concat(t.dedupe_key, ':canceled:', t.task_id)
      FROM standing s
     WHERE t.task_id = s.task_id AND s.status = 'Canceled'
)
UPDATE backfill_chunks c
   SET state = 'created', task_id = s.task_id, own = s.status = 'Failed' AND s.retry_at IS NULL
  FROM standing s
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = s.first AND s.status <> 'Canceled'
"""
)


async def create_tasks(conn: Conn, backfill_id: UUID, *, limit: int) -> int:
    """Make tasks of the next chunks, or take over those that are there. Returns how many."""
    values = {"backfill_id": backfill_id, "limit": limit}
    taken = (await conn.execute(_TAKE_OVER, values)).rowcount
    return taken + (await conn.execute(_CREATE, {**values, "limit": limit - taken})).rowcount


_EMIT = """
WITH span AS (
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
             FROM span))
)
UPDATE backfill_chunks c
   SET state = 'completed', settled_at = now(), own = e.task_id IS NOT NULL,
       task_id = coalesce(e.task_id, (
           SELECT t.task_id FROM tasks t
            WHERE t.job_id = s.job_id AND t.dedupe_key = s.dedupe_key))
  FROM span s LEFT JOIN emitted e USING (range_start)
 WHERE c.backfill_id = %(backfill_id)s AND c.range_start = s.range_start
"""


async def emit(conn: Conn, backfill_id: UUID, *, limit: int) -> int:
    """Emit the next chunks of a source's backfill, each once. Returns how many."""
    values = {"backfill_id": backfill_id, "limit": limit}
    return (await conn.execute(_EMIT, values)).rowcount


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
    """End a backfill that has nothing left to do. Returns how it ended."""
    row = await (await conn.execute(_FINISH, {"backfill_id": backfill_id})).fetchone()
    return row[0] if row else None


_LOCK = """
SELECT state FROM backfills WHERE backfill_id = %(backfill_id)s AND org_id = %(org_id)s FOR UPDATE
"""
# Canceled tasks give their keys away: an event about the same scope must find its way.
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
class Canceled:
    tasks: int
    running: int
    """Of those, how many were asked to stop."""


async def cancel(conn: Conn, backfill_id: UUID, why: str) -> Canceled:
    """End a running backfill: what waits is canceled, what runs is asked to stop."""
    await settle(conn, backfill_id)
    values = {"backfill_id": backfill_id, "why": why}
    statuses = [row[0] for row in await (await conn.execute(_CANCEL_TASKS, values)).fetchall()]
    await conn.execute(_CANCEL_CHUNKS, values)
    await conn.execute(_CANCEL, values)
    return Canceled(len(statuses), statuses.count("Running"))


async def lock(conn: Conn, org_id: UUID, backfill_id: UUID) -> str:
    """A backfill's state, which nobody else changes until commit. Raises NotFound."""
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
    """Give what failed or was canceled another round. Returns how many. Raises Conflict."""
    values = {"backfill_id": backfill_id}
    again = (await conn.execute(_RESUME_CHUNKS, values)).rowcount
    try:
        await conn.execute(_RESUME, values)
    except UniqueViolation as error:
        raise Conflict("another backfill of the same range runs already") from error
    return again


# One at a time: each may have a hundred thousand chunks.
_FORGET = """
DELETE FROM backfills WHERE backfill_id = (
    SELECT backfill_id FROM backfills WHERE ended_at < now() - %(older_than)s
     ORDER BY ended_at LIMIT 1 FOR UPDATE SKIP LOCKED)
"""


async def forget(conn: Conn, *, older_than: timedelta) -> int:
    """Drop a backfill that ended long ago, with its chunks. Returns how many."""
    return (await conn.execute(_FORGET, {"older_than": older_than})).rowcount
