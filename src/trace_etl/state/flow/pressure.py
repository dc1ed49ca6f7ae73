"""Backpressure: measure queues with limits, and pause and resume the jobs upstream of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trace_etl.model.dag import Priority
from trace_etl.policy.backpressure import JobLoad, QueueLimits, QueueLoad, Trip
from trace_etl.state.db.pool import Conn

# Every writer of pauses holds this lock, so that the state of a job is computed from all its pauses.
# Users' requests wait for the lock. The loop does not wait: it runs on one replica at a time.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.pressure', 0))"
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.pressure', 0))"


async def lock(conn: Conn) -> None:
    """Lock all pauses until commit."""
    await conn.execute(_LOCK)


async def try_lock(conn: Conn) -> bool:
    """Lock all pauses until commit, without waiting. Returns False if the lock is taken."""
    row = await (await conn.execute(_TRY_LOCK)).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True)
class MeasuredQueue:
    """The queue of a job that has limits, or that exerts backpressure after its limits were removed."""

    job_id: UUID
    name: str
    limits: QueueLimits
    load: JobLoad
    trip: Trip | None
    at: datetime


# Counts tasks only up to twice the limit, because the policy needs no larger numbers.
_MEASURE_QUEUES = """
WITH limited AS MATERIALIZED (
    SELECT j.job_id, g.name || '.' || j.name AS name, j.bulk_paused_at IS NOT NULL AS sheds_bulk,
           CASE WHEN j.active THEN r.max_queue_depth END AS max_depth,
           CASE WHEN j.active THEN r.max_queue_age END AS max_age
      FROM jobs j JOIN dags g USING (dag_id)
      LEFT JOIN job_revisions r ON r.revision_id = j.revision_id
     WHERE (j.active AND (r.max_queue_depth IS NOT NULL OR r.max_queue_age IS NOT NULL))
        OR EXISTS (SELECT FROM trips t WHERE t.job_id = j.job_id)
)
SELECT l.job_id, l.name, l.max_depth, l.max_age, l.sheds_bulk,
       normal.depth, coalesce(extract(epoch FROM now() - normal.oldest), 0)::float8,
       bulk.depth, coalesce(extract(epoch FROM now() - bulk.oldest), 0)::float8,
       now(), t.level, t.reason, t.measured, t.threshold, t.since, t.level_since
  FROM limited l LEFT JOIN trips t USING (job_id)
 CROSS JOIN LATERAL (
       SELECT count(*) AS depth, min(q.queued_at) AS oldest
         FROM (SELECT queued_at FROM tasks
                WHERE job_id = l.job_id AND status = 'Queued' AND bulk = false
                ORDER BY queued_at LIMIT 2 * coalesce(l.max_depth, 1)) q) normal
 CROSS JOIN LATERAL (
       SELECT count(*) AS depth, min(q.queued_at) AS oldest
         FROM (SELECT queued_at FROM tasks
                WHERE job_id = l.job_id AND status = 'Queued' AND bulk = true
                ORDER BY queued_at LIMIT 2 * coalesce(l.max_depth, 1)) q) bulk
"""


async def measure_queues(conn: Conn) -> list[MeasuredQueue]:
    """Measure every queue that has limits or exerts backpressure."""
    rows = await (await conn.execute(_MEASURE_QUEUES)).fetchall()
    return [
        MeasuredQueue(
            row[0],
            row[1],
            QueueLimits(row[2], row[3]),
            JobLoad(QueueLoad(row[5], row[6]), QueueLoad(row[7], row[8]), row[4]),
            Trip(*row[10:]) if row[10] is not None else None,
            row[9],
        )
        for row in rows
    ]


_READ_STATE = """
SELECT EXISTS (SELECT FROM job_revisions r JOIN jobs j USING (revision_id)
                WHERE j.active AND (r.max_queue_depth IS NOT NULL OR r.max_queue_age IS NOT NULL)),
       EXISTS (SELECT FROM trips), EXISTS (SELECT FROM deferred_events)
"""


@dataclass(frozen=True)
class PressureState:
    """Which kinds of work the backpressure loop has."""

    has_limits: bool
    """Some queue has limits."""
    has_pressure: bool
    """Some queue exerts backpressure."""
    has_deferred_events: bool
    """Some event waits until a paused job resumes."""


async def read_state(conn: Conn) -> PressureState:
    """Read which kinds of work exist. An idle loop runs only this query, so it must be cheap."""
    (row,) = await (await conn.execute(_READ_STATE)).fetchall()
    return PressureState(*row)


# The edges of live revisions and of those being built.
_LIST_EDGES = """
SELECT DISTINCT d.job_id, j.job_id
  FROM jobs j
  JOIN job_inputs i ON i.revision_id = ANY(ARRAY[j.revision_id, j.building_revision_id])
  JOIN dataset_producers d ON d.dataset_uuid = i.dataset_uuid
 WHERE j.active
"""


async def list_edges(conn: Conn) -> list[tuple[UUID, UUID]]:
    """List every edge as (producer, consumer), inside DAGs and across them."""
    return [(row[0], row[1]) for row in await (await conn.execute(_LIST_EDGES)).fetchall()]


_UPSERT_TRIPS = """
INSERT INTO trips (job_id, level, reason, measured, threshold, since, level_since)
SELECT * FROM unnest(%(job_ids)s::uuid[], %(levels)s::int[], %(reasons)s::text[],
                     %(measured)s::bigint[], %(thresholds)s::bigint[], %(since)s::timestamptz[],
                     %(level_since)s::timestamptz[])
ON CONFLICT (job_id) DO UPDATE
   SET level = EXCLUDED.level, reason = EXCLUDED.reason, measured = EXCLUDED.measured,
       threshold = EXCLUDED.threshold, level_since = EXCLUDED.level_since
"""
_DELETE_OTHER_TRIPS = "DELETE FROM trips WHERE job_id <> ALL(%(job_ids)s)"


async def replace_trips(conn: Conn, trips: Mapping[UUID, Trip]) -> None:
    """Replace all trips: the queues that exceed a limit."""
    values = {
        "job_ids": list(trips),
        "levels": [trip.level for trip in trips.values()],
        "reasons": [trip.reason for trip in trips.values()],
        "measured": [trip.measured for trip in trips.values()],
        "thresholds": [trip.threshold for trip in trips.values()],
        "since": [trip.since for trip in trips.values()],
        "level_since": [trip.level_since for trip in trips.values()],
    }
    await conn.execute(_DELETE_OTHER_TRIPS, {"job_ids": values["job_ids"]})
    await conn.execute(_UPSERT_TRIPS, values)


@dataclass(frozen=True)
class NewPause:
    """A pause of a job, requested by the queue of another job."""

    job_id: UUID
    by_job_id: UUID
    by_name: str
    tier: Priority
    reason: str


_LIST_QUEUE_PAUSES = "SELECT job_id, by_job_id, tier FROM pauses WHERE by_job_id IS NOT NULL"
_DELETE_PAUSES = """
DELETE FROM pauses p USING unnest(%(job_ids)s::uuid[], %(by_job_ids)s::uuid[]) AS g (job_id, by_id)
 WHERE p.job_id = g.job_id AND p.by_job_id = g.by_id
"""
_UPSERT_PAUSES = """
INSERT INTO pauses (job_id, by_job_id, by_name, tier, reason)
SELECT * FROM unnest(%(job_ids)s::uuid[], %(by_job_ids)s::uuid[], %(by_names)s::text[],
                     %(tiers)s::text[], %(reasons)s::text[])
ON CONFLICT ON CONSTRAINT pauses_once DO UPDATE
   SET tier = EXCLUDED.tier, reason = EXCLUDED.reason, since = now()
"""


async def replace_pauses(conn: Conn, wanted: list[NewPause]) -> int:
    """Replace all pauses that queues requested. Returns how many jobs changed."""
    rows = await (await conn.execute(_LIST_QUEUE_PAUSES)).fetchall()
    current: dict[tuple[UUID, UUID], str] = {(row[0], row[1]): row[2] for row in rows}
    pairs = {(p.job_id, p.by_job_id) for p in wanted}
    changed = [p for p in wanted if current.get((p.job_id, p.by_job_id)) != p.tier]
    ended = [pair for pair in current if pair not in pairs]
    if ended:
        values = {"job_ids": [job for job, _ in ended], "by_job_ids": [by for _, by in ended]}
        await conn.execute(_DELETE_PAUSES, values)
    if changed:
        await conn.execute(_UPSERT_PAUSES, _split_columns(changed))
    job_ids = {job for job, _ in ended} | {p.job_id for p in changed}
    if job_ids:
        await apply_pauses(conn, sorted(job_ids))
    return len(job_ids)


def _split_columns(pauses: list[NewPause]) -> dict[str, object]:
    return {
        "job_ids": [p.job_id for p in pauses],
        "by_job_ids": [p.by_job_id for p in pauses],
        "by_names": [p.by_name for p in pauses],
        "tiers": [p.tier for p in pauses],
        "reasons": [p.reason for p in pauses],
    }


# A job that resumes needs wake-ups and its deferred events. The same transaction enqueues a `release`,
# which delivers both.
_APPLY_PAUSES = """
WITH before AS (
    SELECT job_id, paused_at, bulk_paused_at FROM jobs WHERE job_id = ANY(%(job_ids)s)
), pause AS (
    SELECT job_id, since, tier,
           by_name || CASE reason WHEN '' THEN '' ELSE ' (' || reason || ')' END AS label
      FROM pauses WHERE job_id = ANY(%(job_ids)s)
), after AS (
    SELECT b.job_id, min(p.since) AS bulk_at, min(p.since) FILTER (WHERE p.tier = 'normal') AS at,
           (array_agg(p.label ORDER BY p.since, p.label))[1] AS bulk_by,
           (array_agg(p.label ORDER BY p.since, p.label) FILTER (WHERE p.tier = 'normal'))[1] AS by,
           count(p.tier) AS bulk_n, count(*) FILTER (WHERE p.tier = 'normal') AS n
      FROM before b LEFT JOIN pause p USING (job_id) GROUP BY b.job_id
), updated AS (
    UPDATE jobs j
       SET paused_at = a.at, bulk_paused_at = a.bulk_at,
           paused_by = a.by || CASE WHEN a.n > 1 THEN format(' and %%s more', a.n - 1) ELSE '' END,
           bulk_paused_by = a.bulk_by
               || CASE WHEN a.bulk_n > 1 THEN format(' and %%s more', a.bulk_n - 1) ELSE '' END
      FROM after a WHERE j.job_id = a.job_id
)
SELECT outbox_id FROM enqueue(ARRAY(
    SELECT outbox_entry('release', b.job_id) FROM before b JOIN after a USING (job_id)
     WHERE (b.paused_at IS NOT NULL AND a.at IS NULL)
        OR (b.bulk_paused_at IS NOT NULL AND a.bulk_at IS NULL)))
"""


async def apply_pauses(conn: Conn, job_ids: list[UUID]) -> int:
    """Update the paused state of jobs from their pauses. Returns how many of them resume."""
    return (await conn.execute(_APPLY_PAUSES, {"job_ids": job_ids})).rowcount
