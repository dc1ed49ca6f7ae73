"""Queues that push back, the jobs that wait for them, and letting those go on."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trace_etl.policy.backpressure import JobLoad, QueueLimits, QueueLoad, Tier, Trip
from trace_etl.state.db.pool import Conn

# Every writer of pauses holds it, so that what a job's pauses amount to is computed from all of
# them. People wait for it; of the loops on all replicas one at a time looks.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.pressure', 0))"
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('trace.pressure', 0))"


async def lock(conn: Conn) -> None:
    """Be the only one who changes pauses, until commit."""
    await conn.execute(_LOCK)


async def try_lock(conn: Conn) -> bool:
    """The same, without waiting. False: somebody else is at it."""
    row = await (await conn.execute(_TRY_LOCK)).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True)
class Measured:
    """A job with limits, or one that still pushes back without any."""

    job_id: UUID
    name: str
    limits: QueueLimits
    load: JobLoad
    trip: Trip | None
    at: datetime


# No further than twice the limit: that is as much as anybody wants to know.
_MEASURE = """
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


async def measure(conn: Conn) -> list[Measured]:
    """Every queue that has limits, as it stands now."""
    found = await (await conn.execute(_MEASURE)).fetchall()
    return [
        Measured(
            row[0],
            row[1],
            QueueLimits(row[2], row[3]),
            JobLoad(QueueLoad(row[5], row[6]), QueueLoad(row[7], row[8]), row[4]),
            Trip(*row[10:]) if row[10] is not None else None,
            row[9],
        )
        for row in found
    ]


_STATE = """
SELECT EXISTS (SELECT FROM job_revisions r JOIN jobs j USING (revision_id)
                WHERE j.active AND (r.max_queue_depth IS NOT NULL OR r.max_queue_age IS NOT NULL)),
       EXISTS (SELECT FROM trips), EXISTS (SELECT FROM deferred_events)
"""


@dataclass(frozen=True)
class State:
    is_limited: bool
    """Some queue has limits."""
    is_pressed: bool
    """Some queue pushes back."""
    is_owing: bool
    """Some job is owed events."""


async def state(conn: Conn) -> State:
    """Whether there is anything to look at."""
    (row,) = await (await conn.execute(_STATE)).fetchall()
    return State(*row)


# Of the live generation and of the one that is built beside it.
_EDGES = """
SELECT DISTINCT d.job_id, j.job_id
  FROM jobs j
  JOIN job_inputs i ON i.revision_id = ANY(ARRAY[j.revision_id, j.building_revision_id])
  JOIN dataset_producers d ON d.dataset_uuid = i.dataset_uuid
 WHERE j.active
"""


async def edges(conn: Conn) -> list[tuple[UUID, UUID]]:
    """(producer, consumer) of every edge, within DAGs and across."""
    return [(row[0], row[1]) for row in await (await conn.execute(_EDGES)).fetchall()]


_KEEP_TRIPS = """
INSERT INTO trips (job_id, level, reason, measured, threshold, since, level_since)
SELECT * FROM unnest(%(job_ids)s::uuid[], %(levels)s::int[], %(reasons)s::text[],
                     %(measured)s::bigint[], %(thresholds)s::bigint[], %(since)s::timestamptz[],
                     %(level_since)s::timestamptz[])
ON CONFLICT (job_id) DO UPDATE
   SET level = EXCLUDED.level, reason = EXCLUDED.reason, measured = EXCLUDED.measured,
       threshold = EXCLUDED.threshold, level_since = EXCLUDED.level_since
"""
_DROP_TRIPS = "DELETE FROM trips WHERE job_id <> ALL(%(job_ids)s)"


async def keep_trips(conn: Conn, trips: Mapping[UUID, Trip]) -> None:
    """Make these the trips that stand."""
    values = {
        "job_ids": list(trips),
        "levels": [trip.level for trip in trips.values()],
        "reasons": [trip.reason for trip in trips.values()],
        "measured": [trip.measured for trip in trips.values()],
        "thresholds": [trip.threshold for trip in trips.values()],
        "since": [trip.since for trip in trips.values()],
        "level_since": [trip.level_since for trip in trips.values()],
    }
    await conn.execute(_DROP_TRIPS, {"job_ids": values["job_ids"]})
    await conn.execute(_KEEP_TRIPS, values)


@dataclass(frozen=True)
class NewPause:
    job_id: UUID
    by_job_id: UUID
    by_name: str
    tier: Tier
    reason: str


_STANDING = "SELECT job_id, by_job_id, tier FROM pauses WHERE by_job_id IS NOT NULL"
_LIFT = """
DELETE FROM pauses p USING unnest(%(job_ids)s::uuid[], %(by_job_ids)s::uuid[]) AS g (job_id, by_id)
 WHERE p.job_id = g.job_id AND p.by_job_id = g.by_id
"""
_PUT = """
INSERT INTO pauses (job_id, by_job_id, by_name, tier, reason)
SELECT * FROM unnest(%(job_ids)s::uuid[], %(by_job_ids)s::uuid[], %(by_names)s::text[],
                     %(tiers)s::text[], %(reasons)s::text[])
ON CONFLICT ON CONSTRAINT pauses_once DO UPDATE
   SET tier = EXCLUDED.tier, reason = EXCLUDED.reason, since = now()
"""


async def keep_pauses(conn: Conn, wanted: list[NewPause]) -> int:
    """Make these the pauses that queues ask for, and tell the jobs. Returns how many changed."""
    rows = await (await conn.execute(_STANDING)).fetchall()
    standing: dict[tuple[UUID, UUID], str] = {(row[0], row[1]): row[2] for row in rows}
    kept = {(p.job_id, p.by_job_id) for p in wanted}
    put = [p for p in wanted if standing.get((p.job_id, p.by_job_id)) != p.tier]
    gone = [pair for pair in standing if pair not in kept]
    if gone:
        values = {"job_ids": [job for job, _ in gone], "by_job_ids": [by for _, by in gone]}
        await conn.execute(_LIFT, values)
    if put:
        await conn.execute(_PUT, _columns(put))
    changed = {job for job, _ in gone} | {p.job_id for p in put}
    if changed:
        await settle(conn, sorted(changed))
    return len(changed)


def _columns(pauses: list[NewPause]) -> dict[str, object]:
    return {
        "job_ids": [p.job_id for p in pauses],
        "by_job_ids": [p.by_job_id for p in pauses],
        "by_names": [p.by_name for p in pauses],
        "tiers": [p.tier for p in pauses],
        "reasons": [p.reason for p in pauses],
    }


# Whoever may go on is owed wake-ups and events: asked for in the same transaction.
_SETTLE = """
WITH before AS (
    SELECT job_id, paused_at, bulk_paused_at FROM jobs WHERE job_id = ANY(%(job_ids)s)
), held AS (
    SELECT job_id, since, tier,
           by_name || CASE reason WHEN '' THEN '' ELSE ' (' || reason || ')' END AS words
      FROM pauses WHERE job_id = ANY(%(job_ids)s)
), after AS (
    SELECT b.job_id, min(h.since) AS bulk_at, min(h.since) FILTER (WHERE h.tier = 'normal') AS at,
           (array_agg(h.words ORDER BY h.since, h.words))[1] AS bulk_by,
           (array_agg(h.words ORDER BY h.since, h.words) FILTER (WHERE h.tier = 'normal'))[1] AS by,
           count(h.tier) AS bulk_n, count(*) FILTER (WHERE h.tier = 'normal') AS n
      FROM before b LEFT JOIN held h USING (job_id) GROUP BY b.job_id
), told AS (
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


async def settle(conn: Conn, job_ids: list[UUID]) -> int:
    """Bring jobs in line with their pauses. Returns how many of them may go on."""
    return (await conn.execute(_SETTLE, {"job_ids": job_ids})).rowcount
