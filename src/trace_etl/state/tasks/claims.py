"""`Queued → Running`: many claims, one statement, one commit."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from trace_etl.model.errors import NotFound
from trace_etl.model.task import NotClaimedReason, TaskStatus
from trace_etl.state.db.pool import Conn, rows_as_json


class ClaimRequest(NamedTuple):
    """Somebody's wish for a task. The lease token is drawn before, so that a repeat is seen."""

    task_id: UUID
    worker_id: str
    lease_token: UUID


class ClaimedTask(NamedTuple):
    """A task somebody won, with what its payload is made from; as cheap as a row can be."""

    task_id: UUID
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    org_id: UUID
    revision_id: UUID
    timeout_seconds: int
    lease_seconds: int
    dataset_uuid: UUID | None
    dataset_version: UUID | None
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    cursor_value: int | None
    invalidation_id: UUID | None
    pins: str | None
    """JSON; for each input partition: input index, dataset version, key, first, last, storage."""


_COLUMNS: LiteralString = """
    t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
    t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
    t.range_start, t.range_end, t.cursor_value, t.invalidation_id
"""

# What the inputs hold at this moment, pinned by the statement that starts the task. An edge inside
# the DAG reads the generation its revision was made for; one across DAGs reads what the event was
# about, if it woke the task, and else what is current.
_PINS: LiteralString = """
    (SELECT json_agg(json_build_array(i.input_index, v.dataset_version, p.partition_key,
                                      p.range_start, p.range_end, p.storage_ref)
                     ORDER BY i.input_index, p.range_start, p.partition_key)
       FROM job_inputs i
       JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
       JOIN dataset_versions v ON v.dataset_version = coalesce(
            i.dataset_version,
            CASE WHEN i.dataset_uuid = t.dataset_uuid THEN t.dataset_version END,
            d.dataset_version)
       LEFT JOIN LATERAL (
            SELECT partition_key, range_start, range_end, storage_ref FROM partitions
             WHERE t.range_start IS NOT NULL AND dataset_version = v.dataset_version
               AND box(point(generation_no, range_start), point(generation_no, range_end))
                   && box(point(v.generation_no, t.range_start),
                          point(v.generation_no, t.range_end))
             UNION ALL
            SELECT partition_key, range_start, range_end, storage_ref FROM partitions
             WHERE t.range_start IS NULL AND dataset_version = v.dataset_version
       ) p ON true
      WHERE i.revision_id = t.revision_id)::text AS pins
"""

_START: LiteralString = """
    UPDATE tasks t
       SET status = 'Running', lease_token = l.lease_token, worker_id = l.worker_id,
           started_at = now(), pinned_snapshot = pg_current_snapshot(),
           lease_expires_at = now() + make_interval(secs => t.lease_seconds),
           deadline_at = now() + make_interval(secs => t.timeout_seconds)
"""
_RETURNING: LiteralString = " RETURNING " + _COLUMNS
_WON: LiteralString = "SELECT t.*, " + _PINS + " FROM won t"
# Row by row as they are wanted, by primary key. The first `||` keeps the planner from going through
# all that is queued instead; the second has it expect one wish and not a hundred, which is what it
# takes any JSON for: for a hundred it would go through all of a table that is not large.
_WANTED: LiteralString = """
      FROM json_to_recordset(%(wishes)s::json) AS l (
           task_id uuid, worker_id text, lease_token uuid), jobs j
     WHERE t.task_id = l.task_id AND t.status || '' = 'Queued' AND NOT t.cancel_requested
       AND l.worker_id || '' = l.worker_id AND j.job_id = t.job_id
"""

_CLAIM = (
    "WITH won AS ("
    + _START
    + _WANTED
    + """
       AND t.max_concurrency IS NULL AND j.capped_operator IS NULL AND j.paused_at IS NULL
       AND NOT (t.bulk AND j.bulk_paused_at IS NOT NULL)
"""
    + _RETURNING
    + ") "
    + _WON
)


def _as_json(wishes: list[ClaimRequest]) -> str:
    """In the order of their ids: two batches with common tasks cannot deadlock."""
    return rows_as_json(
        [
            {"task_id": w.task_id, "worker_id": w.worker_id, "lease_token": w.lease_token}
            for w in sorted(wishes, key=lambda w: w.task_id)
        ]
    )


async def claim(conn: Conn, wishes: list[ClaimRequest]) -> dict[UUID, ClaimedTask]:
    """Start every wished task that may start now. Answers by lease token; a loser has no entry."""
    won = await conn.rows(_CLAIM, {"wishes": _as_json(wishes)}, ClaimedTask._make)
    return {task.lease_token: task for task in won}


_CAPPED_CANDIDATES = """
SELECT t.task_id, t.job_id, t.max_concurrency, c.operator, c.cap
  FROM tasks t JOIN jobs j USING (job_id)
  LEFT JOIN operator_caps c ON c.operator = j.capped_operator
 WHERE t.task_id = ANY(%(task_ids)s) AND t.status = 'Queued' AND NOT t.cancel_requested
   AND (t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL) AND j.paused_at IS NULL
   AND NOT (t.bulk AND j.bulk_paused_at IS NOT NULL)
 ORDER BY t.bulk, t.queued_at, t.task_id
"""

# Serialise the claims of one capped operator or job, over all replicas, until commit. All of the
# operators' before any of the jobs', each in order: so no two transactions can deadlock.
_LOCK_OPERATOR = "SELECT pg_advisory_xact_lock(hashtextextended('operator:' || %(operator)s, 0))"
_LOCK_JOB = "SELECT pg_advisory_xact_lock(hashtextextended('job:' || %(job_id)s::text, 0))"
_RUNNING = "SELECT count(*) FROM tasks WHERE job_id = %(job_id)s AND status = 'Running'"
_RUNNING_OPERATOR = """
SELECT count(*) FROM jobs j JOIN tasks t USING (job_id)
 WHERE j.capped_operator = %(operator)s AND t.status = 'Running'
"""
# Whoever ends makes room for somebody: a cap on the row, however wide, has that told.
_START_CAPPED: LiteralString = _START.replace(
    "SET ", "SET max_concurrency = coalesce(t.max_concurrency, 2147483647), "
)
_CLAIM_CAPPED = "WITH won AS (" + _START_CAPPED + _WANTED + _RETURNING + ") " + _WON


class _Candidate(NamedTuple):
    """A wished task of a job that is capped, or whose operator is."""

    task_id: UUID
    job_id: UUID
    job_cap: int | None
    operator: str | None
    operator_cap: int | None

    def caps(self) -> list[tuple[UUID | str | None, int]]:
        """What it is held to: the job's cap, its operator's, or both."""
        both = ((self.job_id, self.job_cap), (self.operator, self.operator_cap))
        return [(whose, cap) for whose, cap in both if cap is not None]


async def claim_capped(conn: Conn, wishes: list[ClaimRequest]) -> dict[UUID, ClaimedTask]:
    """The same for jobs with `scaling.max_concurrency` or a capped operator, never exceeding it.

    Room is given to the oldest first, whatever its job. To be called inside a transaction.
    """
    by_task = {w.task_id: w for w in wishes}
    seen = await _candidates(conn, by_task)
    running: dict[UUID | str | None, int] = {}
    for operator in sorted({c.operator for c in seen if c.operator is not None}):
        running[operator] = await _running_of_operator(conn, operator)
    for job_id in sorted({c.job_id for c in seen if c.job_cap is not None}):
        running[job_id] = await _running_of_job(conn, job_id)
    chosen: list[ClaimRequest] = []
    # Once more: whoever was started while we waited is counted already, and wants no room.
    for c in await _candidates(conn, by_task):
        if all(whose in running and running[whose] < cap for whose, cap in c.caps()):
            chosen.append(by_task[c.task_id])
            for whose in (c.job_id, c.operator):
                if whose in running:
                    running[whose] += 1
    if not chosen:
        return {}
    won = await conn.rows(_CLAIM_CAPPED, {"wishes": _as_json(chosen)}, ClaimedTask._make)
    return {task.lease_token: task for task in won}


async def _candidates(conn: Conn, task_ids: Iterable[UUID]) -> list[_Candidate]:
    cursor = await conn.execute(_CAPPED_CANDIDATES, {"task_ids": list(task_ids)})
    return [_Candidate(*row) for row in await cursor.fetchall()]


async def _running_of_operator(conn: Conn, operator: str) -> int:
    """How many of its tasks run; nobody else starts one until commit."""
    await conn.execute(_LOCK_OPERATOR, {"operator": operator})
    (row,) = await (await conn.execute(_RUNNING_OPERATOR, {"operator": operator})).fetchall()
    return row[0]


async def _running_of_job(conn: Conn, job_id: UUID) -> int:
    """The same of a job."""
    await conn.execute(_LOCK_JOB, {"job_id": job_id})
    (row,) = await (await conn.execute(_RUNNING, {"job_id": job_id})).fetchall()
    return row[0]


_UNCAPPED: LiteralString = "max_concurrency IS NULL"
_CAPPED: LiteralString = "max_concurrency IS NOT NULL"
_TIERS: tuple[LiteralString, ...] = ("bulk = false", "bulk AND j.bulk_paused_at IS NULL")


# The `'' ||` is that of two indexes, which are the only ones to look these up by.
def _oldest_of_job(limit: LiteralString, *kinds: LiteralString) -> LiteralString:
    """A job's next tasks of a runtime. Reads none of another one, nor of a tier that is held."""
    of_each: list[LiteralString] = [
        """
        (SELECT task_id, bulk, queued_at FROM tasks
          WHERE job_id = j.job_id AND '' || status = 'Queued' AND runtime = %(runtime)s
            AND NOT cancel_requested AND """
        + kind
        + " AND "
        + tier
        + " ORDER BY queued_at LIMIT "
        + limit
        + ")"
        for kind in kinds
        for tier in _TIERS
    ]
    all_of_them: LiteralString = " UNION ALL ".join(of_each)
    return all_of_them + " ORDER BY bulk, queued_at LIMIT " + limit


# Places are told apart by their number: a join with them would compare each with each.
_TAKE: LiteralString = (
    """, places AS MATERIALIZED (
    SELECT ARRAY(SELECT json_array_elements_text(%(workers)s::json)) AS workers,
           string_to_array(%(lease_tokens)s, ',') AS lease_tokens
), locked AS (
    SELECT task_id, workers[n] AS worker_id, lease_tokens[n]::uuid AS lease_token
      FROM (SELECT task_id, row_number() OVER () AS n FROM next) numbered, places
), won AS ("""
    + _START
    + " FROM locked l WHERE t.task_id = l.task_id AND t.status = 'Queued'"
    + _RETURNING
    + ") "
    + _WON
)

# Oldest first over all jobs, unless some are paused: every claim would read in vain what those have
# queued, so then each of the others is asked for its oldest.
_ANY_PAUSED: LiteralString = """
    EXISTS (SELECT FROM jobs WHERE paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL)
"""
# Who asks where nothing waits shall not have every job asked.
_ANY_QUEUED: LiteralString = """
    EXISTS (SELECT FROM tasks WHERE runtime = %(runtime)s AND status = 'Queued')
"""
_CLAIM_READY = (
    """
WITH next AS (
    SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id)
     WHERE t.runtime = %(runtime)s AND t.status = 'Queued' AND NOT t.cancel_requested
       AND t.max_concurrency IS NULL AND j.capped_operator IS NULL AND NOT """
    + _ANY_PAUSED
    + """
     ORDER BY t.bulk, t.queued_at
     LIMIT %(limit)s::int
       FOR UPDATE OF t SKIP LOCKED
)"""
    + _TAKE
)
_CLAIM_READY_OF_EACH = (
    """
WITH candidates AS MATERIALIZED (
    SELECT t.task_id, t.bulk, t.queued_at
      FROM jobs j CROSS JOIN LATERAL ("""
    + _oldest_of_job("%(limit)s::int", _UNCAPPED)
    + """) t
     WHERE j.paused_at IS NULL AND j.capped_operator IS NULL AND """
    + _ANY_PAUSED
    + " AND "
    + _ANY_QUEUED
    + """
     ORDER BY t.bulk, t.queued_at
     LIMIT 4 * %(limit)s::int  -- others may be at the same ones
), next AS (
    SELECT t.task_id FROM candidates c JOIN tasks t USING (task_id)
     WHERE t.status = 'Queued' AND NOT t.cancel_requested
     ORDER BY c.bulk, c.queued_at
     LIMIT %(limit)s::int
       FOR UPDATE OF t SKIP LOCKED
)"""
    + _TAKE
)


async def claim_ready(
    conn: Conn, runtime: str, places: list[tuple[str, UUID]]
) -> list[ClaimedTask]:
    """Start the oldest claimable tasks of a runtime, one for each (worker, lease token)."""
    values = {
        "runtime": runtime,
        "limit": str(len(places)),
        "workers": rows_as_json([worker for worker, _ in places]),
        "lease_tokens": ",".join([token.hex for _, token in places]),
    }
    won = await conn.rows(_CLAIM_READY, values, ClaimedTask._make)
    return won or await conn.rows(_CLAIM_READY_OF_EACH, values, ClaimedTask._make)


def _capped_of_each(
    jobs: LiteralString, room: LiteralString, *kinds: LiteralString
) -> LiteralString:
    """Of each of these jobs as many as it has room for, by the cap of its oldest."""
    limit: LiteralString = "room.n"
    return (
        "SELECT t.task_id, t.bulk, t.queued_at, j.capped_operator, "
        + room
        + " AS room FROM "
        + jobs
        + """
     CROSS JOIN LATERAL (
           SELECT greatest(0, least(%(limit)s::int, """
        + room
        + """, (SELECT q.max_concurrency - (SELECT count(*) FROM tasks
                                              WHERE job_id = j.job_id AND status = 'Running')
                  FROM (SELECT max_concurrency FROM tasks
                         WHERE job_id = j.job_id AND '' || status = 'Queued'
                           AND runtime = %(runtime)s
                           AND NOT cancel_requested AND max_concurrency IS NOT NULL
                         ORDER BY bulk, queued_at LIMIT 1) q))) AS n
           OFFSET 0  -- counted once, and not wherever it is used
     ) room
     CROSS JOIN LATERAL ("""
        + _oldest_of_job(limit, *kinds)
        + ") t WHERE j.paused_at IS NULL AND "
        + _ANY_QUEUED
        + " AND "
    )


# Jobs with a cap of their own, and those of a capped operator; the operator's room goes to the
# oldest of all its jobs. So no job that must wait hides one that need not; within a job, tasks that
# were queued with different caps wait for the oldest of them.
_CAPPED_READY = (
    """
WITH operators AS MATERIALIZED (
    SELECT c.operator, c.cap - (SELECT count(*) FROM jobs o JOIN tasks t USING (job_id)
                                 WHERE o.capped_operator = c.operator
                                   AND t.status = 'Running') AS room
      FROM operator_caps c
), offered AS (
    """
    + _capped_of_each("jobs j", "NULL::bigint", _CAPPED)
    + """j.capped_operator IS NULL
       AND EXISTS (SELECT FROM tasks
                    WHERE '' || status = 'Queued' AND max_concurrency IS NOT NULL)
     UNION ALL
    """
    + _capped_of_each(
        "jobs j LEFT JOIN operators o ON o.operator = j.capped_operator",
        "o.room",
        _UNCAPPED,
        _CAPPED,
    )
    + """j.capped_operator IS NOT NULL
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY capped_operator ORDER BY bulk, queued_at) AS place
      FROM offered
)
SELECT task_id FROM placed WHERE room IS NULL OR place <= room
 ORDER BY bulk, queued_at
 LIMIT %(limit)s::int
"""
)


async def capped_ready(conn: Conn, runtime: str, limit: int) -> list[UUID]:
    """Tasks of capped jobs for which there is room, oldest first. Not locked, so that others may
    have taken it since: `claim_capped` decides."""
    cursor = await conn.execute(_CAPPED_READY, {"runtime": runtime, "limit": limit})
    return [row[0] for row in await cursor.fetchall()]


@dataclass(frozen=True)
class Standing:
    """Why a task was not claimed."""

    task_id: UUID
    status: str
    lease_token: UUID | None
    cancel_requested: bool
    capped: bool
    retry_at: datetime | None

    def reason(self) -> NotClaimedReason:
        if self.status == TaskStatus.RUNNING:
            return NotClaimedReason.ALREADY_RUNNING
        if self.status == TaskStatus.COMPLETED:
            return NotClaimedReason.COMPLETED
        if self.status == TaskStatus.CANCELED or self.cancel_requested:
            return NotClaimedReason.CANCELED
        return NotClaimedReason.NOT_READY


_STANDING = """
SELECT t.task_id, t.status, t.lease_token, t.cancel_requested, t.retry_at,
       t.max_concurrency IS NOT NULL OR j.capped_operator IS NOT NULL AS capped
  FROM tasks t JOIN jobs j USING (job_id) WHERE t.task_id = ANY(%(task_ids)s)
"""


async def standing(conn: Conn, task_ids: list[UUID]) -> dict[UUID, Standing]:
    """How the given tasks stand; unknown ones have no entry."""
    async with conn.cursor(row_factory=class_row(Standing)) as cursor:
        await cursor.execute(_STANDING, {"task_ids": task_ids})
        return {row.task_id: row for row in await cursor.fetchall()}


_HELD = (
    "SELECT "
    + _COLUMNS
    + ", "
    + _PINS
    + " FROM tasks t WHERE t.lease_token = %(lease_token)s::uuid AND t.task_id = %(task_id)s::uuid"
)


async def held(conn: Conn, wish: ClaimRequest) -> list[ClaimedTask]:
    """The task as claimed with this very lease token: an answer that was lost on its way."""
    values = {"lease_token": wish.lease_token.hex, "task_id": wish.task_id.hex}
    return await conn.rows(_HELD, values, ClaimedTask._make)


_HELD_BY = (
    "SELECT "
    + _COLUMNS
    + ", "
    + _PINS
    + " FROM tasks t WHERE t.status = 'Running' AND t.lease_token = ANY(%(lease_tokens)s::uuid[])"
)


async def held_by(conn: Conn, lease_tokens: list[UUID]) -> list[ClaimedTask]:
    """The running tasks claimed with these lease tokens, for claims that named no task."""
    values = {"lease_tokens": "{" + ",".join([token.hex for token in lease_tokens]) + "}"}
    return await conn.rows(_HELD_BY, values, ClaimedTask._make)


_BY_ID = "SELECT " + _COLUMNS + ", " + _PINS + " FROM tasks t WHERE t.task_id = %(task_id)s::uuid"


async def by_id(conn: Conn, task_id: UUID) -> ClaimedTask:
    """A task's payload columns, whatever its state. Raises NotFound."""
    found = await conn.rows(_BY_ID, {"task_id": task_id.hex}, ClaimedTask._make)
    if not found:
        raise NotFound(f"no task {task_id}")
    return found[0]
