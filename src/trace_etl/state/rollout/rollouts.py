"""Rollouts: a DAG's way from one version to the next, and back."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.model.errors import Conflict, NotFound, NothingToRollBack
from trace_etl.state.catalog import names
from trace_etl.state.db.pool import Conn
from trace_etl.state.rollout import backfill_consumers
from trace_etl.state.rollout import retire as abandonment

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))"


async def lock(conn: Conn, org_id: UUID, dag: str) -> None:
    """One deploy, swap or rollback of a DAG at a time, over all replicas, until commit."""
    await conn.execute(_LOCK, {"key": f"deploy:{org_id}:{dag}"})


_SUPERSEDE = """
UPDATE rollouts SET state = 'superseded', ended_at = now()
 WHERE dag_id = %(dag_id)s AND state = 'building'
RETURNING previous_version
"""
_BEGIN = """
INSERT INTO rollouts (dag_id, dag_version, previous_version, state, ended_at)
SELECT dag_id, %(dag_version)s,
       CASE WHEN %(superseded)s THEN %(previous)s::uuid ELSE dag_version END,
       CASE WHEN %(building)s THEN 'building' ELSE 'complete' END,
       CASE WHEN %(building)s THEN NULL ELSE now() END
  FROM dags WHERE dag_id = %(dag_id)s
RETURNING rollout_id
"""


async def begin(conn: Conn, dag_id: UUID, dag_version: UUID, *, building: bool) -> UUID:
    """Record the way to a version, before the DAG switches to it.

    What was still being built is superseded; the way back leads to what was complete before it.
    """
    row = await (await conn.execute(_SUPERSEDE, {"dag_id": dag_id})).fetchone()
    values = {
        "dag_id": dag_id,
        "dag_version": dag_version,
        "superseded": row is not None,
        "previous": row[0] if row else None,
        "building": building,
    }
    begun = await (await conn.execute(_BEGIN, values)).fetchone()
    if begun is None:
        raise LookupError(f"no DAG {dag_id}")
    return begun[0]


_AIM = """
INSERT INTO rollout_targets (rollout_id, dataset_uuid, from_version, to_version)
SELECT %(rollout_id)s, d.dataset_uuid, d.dataset_version, d.building_version
  FROM datasets d JOIN jobs j USING (job_id)
 WHERE j.dag_id = %(dag_id)s AND d.building_version IS NOT NULL
"""
# A name that moves waits until the output it moves to covers the one it leaves.
_AIM_MOVED = """
INSERT INTO rollout_targets (rollout_id, dataset_uuid, from_version, to_version)
SELECT %(rollout_id)s, d.dataset_uuid, old.dataset_version,
       coalesce(d.building_version, d.dataset_version)
  FROM jsonb_to_recordset(%(entries)s) AS e (name text, dataset_uuid uuid)
  JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
  JOIN publications p ON p.org_id = d.org_id AND p.name = e.name
   AND p.dataset_uuid <> e.dataset_uuid
  JOIN datasets old ON old.dataset_uuid = p.dataset_uuid
 WHERE old.dataset_version IS NOT NULL
"""


async def aim(conn: Conn, rollout_id: UUID, dag_id: UUID, entries: list[dict[str, Any]]) -> None:
    """Write down what the new generations must cover before the pointers move."""
    values = {"rollout_id": rollout_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_AIM, values)
    await conn.execute(_AIM_MOVED, values)


_RETIRE = """
UPDATE jobs j SET active = false, building_revision_id = NULL
 WHERE j.dag_id = %(dag_id)s AND j.active
   AND NOT EXISTS (SELECT FROM dag_version_jobs m
                    WHERE m.dag_version = %(dag_version)s AND m.job_id = j.job_id)
"""


async def retire(conn: Conn, dag_id: UUID, dag_version: UUID) -> None:
    """Stop the jobs that a version of the DAG does not have."""
    await conn.execute(_RETIRE, {"dag_id": dag_id, "dag_version": dag_version})


# --- what is covered --------------------------------------------------------------------------

_UNCOVERED = """
SELECT count(*), pg_current_snapshot()::text FROM rollout_coverage
 WHERE rollout_id = %(rollout_id)s
   AND (NOT isempty(missing_ranges) OR missing_keys <> '{}'
        OR (old_cursor IS NOT NULL AND coalesce(new_cursor < old_cursor, true)))
"""


async def covered_as_of(conn: Conn, rollout_id: UUID) -> str | None:
    """The snapshot in which the new generations cover all that the old ones do; None: they lack."""
    row = await (await conn.execute(_UNCOVERED, {"rollout_id": rollout_id})).fetchone()
    return row[1] if row is not None and row[0] == 0 else None


# Only what the old generations gained since that snapshot is looked at: with partitions held, the
# look must be short, however many there are.
_GAINED = """
SELECT count(*)
  FROM rollout_targets g JOIN dataset_versions v ON v.dataset_version = g.to_version
  JOIN partitions p ON p.dataset_version = g.from_version
   AND p.commit_xid >= pg_snapshot_xmin(%(seen)s::pg_snapshot)
   AND NOT pg_visible_in_snapshot(p.commit_xid, %(seen)s::pg_snapshot)
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


async def _gained(conn: Conn, rollout_id: UUID, seen: str) -> bool:
    """Whether the old generations hold something since then that the new ones lack."""
    row = await (await conn.execute(_GAINED, {"rollout_id": rollout_id, "seen": seen})).fetchone()
    return row is None or row[0] > 0


# Nothing of the new generations waits, runs or will be tried again.
_IDLE = """
SELECT j.building_revision_id FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND j.building_revision_id IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM building_tasks t
        WHERE t.dag_id = %(dag_id)s
          AND (t.status IN ('Queued', 'Running')
               OR (t.status = 'Failed' AND t.retry_at IS NOT NULL)))
"""


async def idle_revisions(conn: Conn, dag_id: UUID) -> list[UUID]:
    """The revisions that are being built, if none of them has anything left to do."""
    rows = await (await conn.execute(_IDLE, {"dag_id": dag_id})).fetchall()
    return [row[0] for row in rows]


# --- forward and back -------------------------------------------------------------------------


@dataclass(frozen=True)
class Building:
    rollout_id: UUID
    org_id: UUID
    dag_id: UUID
    dag: str
    dag_version: UUID


_BUILDING = """
SELECT r.rollout_id, g.org_id, g.dag_id, g.name, r.dag_version
  FROM rollouts r JOIN dags g USING (dag_id) WHERE r.state = 'building'
 ORDER BY r.started_at
"""


async def building(conn: Conn) -> list[Building]:
    """Every rollout whose pointers have not moved yet."""
    return [Building(*row) for row in await (await conn.execute(_BUILDING)).fetchall()]


_COMPLETE = """
UPDATE rollouts SET state = 'complete', ended_at = now()
 WHERE rollout_id = %(rollout_id)s AND state = 'building'
"""
_SWAP_JOBS = """
UPDATE jobs SET revision_id = building_revision_id, building_revision_id = NULL
 WHERE dag_id = %(dag_id)s AND building_revision_id IS NOT NULL
"""
_SWAP_DATASETS = """
UPDATE datasets d SET dataset_version = d.building_version, building_version = NULL
  FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND d.job_id = j.job_id AND d.building_version IS NOT NULL
RETURNING d.dataset_uuid
"""
_PUBLICATIONS = "SELECT publications FROM dag_versions WHERE dag_version = %(dag_version)s"
# Nobody commits a partition between the last look at what is covered and the move of the pointers.
# After the tasks are touched: a completion, too, takes its task first and the partition then.
_HOLD_PARTITIONS = "LOCK TABLE partitions IN SHARE ROW EXCLUSIVE MODE"
_NOT_FOR_LONG = "SET LOCAL lock_timeout = '5s'"  # whoever wants to commit waits behind us


class NotCovered(Conflict):
    """The old generations hold something that the new ones lack."""

    code = "not_covered"


async def swap(conn: Conn, one: Building, *, seen: str | None) -> list[UUID]:
    """Move every pointer of a rollout at once. Returns the datasets that moved.

    `seen`: the snapshot in which all was covered; None: never mind. Raises NotCovered when the old
    generations gained something since, Conflict when somebody else ended the rollout.
    """
    await lock(conn, one.org_id, one.dag)
    if not (await conn.execute(_COMPLETE, {"rollout_id": one.rollout_id})).rowcount:
        raise Conflict(f"the rollout of {one.dag} has ended already")
    key = {"dag_id": one.dag_id, "dag_version": one.dag_version}
    await conn.execute(_SWAP_JOBS, key)
    moved = await (await conn.execute(_SWAP_DATASETS, key)).fetchall()
    await retire(conn, one.dag_id, one.dag_version)
    await _publish(conn, one.org_id, one.dag_id, one.dag_version)
    await abandonment.abandon(conn, one.dag_id)
    await conn.execute(_NOT_FOR_LONG)
    await conn.execute(_HOLD_PARTITIONS)
    if seen is not None and await _gained(conn, one.rollout_id, seen):
        raise NotCovered(f"{one.dag}: something was committed to the old generation meanwhile")
    uuids: list[UUID] = [row[0] for row in moved]
    await backfill_consumers.fill_readers(conn, uuids)
    return uuids


async def _publish(conn: Conn, org_id: UUID, dag_id: UUID, dag_version: UUID) -> None:
    row = await (await conn.execute(_PUBLICATIONS, {"dag_version": dag_version})).fetchone()
    if row is not None:
        await names.publish(conn, org_id, dag_id, row[0])


_CURRENT = """
SELECT g.dag_id, g.dag_version, r.rollout_id, r.previous_version, r.state
  FROM dags g LEFT JOIN LATERAL (
       SELECT * FROM rollouts r
        WHERE r.dag_id = g.dag_id AND r.dag_version = g.dag_version
          AND r.state IN ('building', 'complete')
        ORDER BY r.started_at DESC LIMIT 1) r ON true
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND g.dag_version IS NOT NULL
"""
_GIVE_UP = """
UPDATE rollouts SET state = 'rolled_back', ended_at = now() WHERE rollout_id = %(rollout_id)s
"""
_RESTORE_JOBS = """
UPDATE jobs j SET revision_id = m.revision_id, building_revision_id = NULL, active = true
  FROM dag_version_jobs m
 WHERE m.dag_version = %(dag_version)s AND j.job_id = m.job_id
"""
# Those that get another generation than they had: their readers, and they themselves, have to
# catch up with what happened meanwhile.
_RETURNING = """
SELECT m.revision_id FROM dag_version_jobs m JOIN jobs j USING (job_id)
  JOIN job_revisions now ON now.revision_id = j.revision_id
  JOIN job_revisions back ON back.revision_id = m.revision_id
 WHERE m.dag_version = %(dag_version)s
   AND (NOT j.active OR now.generation_hash <> back.generation_hash)
"""
_RESTORE_DATASETS = """
UPDATE datasets d SET dataset_version = o.dataset_version, building_version = NULL
  FROM dag_version_jobs m JOIN job_outputs o USING (revision_id)
 WHERE m.dag_version = %(dag_version)s AND d.dataset_uuid = o.dataset_uuid
   AND d.dataset_version IS DISTINCT FROM o.dataset_version
RETURNING d.dataset_uuid
"""
_CLEAR_DATASETS = """
UPDATE datasets d SET building_version = NULL FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND d.job_id = j.job_id AND d.building_version IS NOT NULL
"""
_SWITCH = """
UPDATE dags SET dag_version = %(dag_version)s, deployed_at = now() WHERE dag_id = %(dag_id)s
"""


@dataclass(frozen=True)
class RolledBack:
    dag_version: UUID
    """What counts again."""
    from_version: UUID
    canceled: int
    """Tasks of the abandoned version that waited, or were told to stop."""
    revisions: list[UUID]
    """Those whose generation came back."""
    datasets: list[UUID]
    """Those that readers see in another generation now."""


async def roll_back(conn: Conn, org_id: UUID, dag: str) -> RolledBack:
    """Go back to the version before. Raises NotFound, NothingToRollBack, NameTaken."""
    await lock(conn, org_id, dag)
    row = await (await conn.execute(_CURRENT, {"org_id": org_id, "dag": dag})).fetchone()
    if row is None:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    dag_id, version, rollout_id, previous, _ = row
    if previous is None:
        raise NothingToRollBack(f"{dag} has no version before {version}")
    key = {"dag_id": dag_id, "dag_version": previous, "rollout_id": rollout_id}
    returning = await (await conn.execute(_RETURNING, key)).fetchall()
    await conn.execute(_GIVE_UP, key)
    await conn.execute(_RESTORE_JOBS, key)
    await retire(conn, dag_id, previous)
    moved = await (await conn.execute(_RESTORE_DATASETS, key)).fetchall()
    await conn.execute(_CLEAR_DATASETS, key)
    await _publish(conn, org_id, dag_id, previous)
    await conn.execute(_SWITCH, key)
    canceled = await abandonment.abandon(conn, dag_id)
    await abandonment.revive(conn, dag_id)
    revisions, datasets = [r[0] for r in returning], [r[0] for r in moved]
    await backfill_consumers.fill(conn, revisions)
    await backfill_consumers.fill_readers(conn, datasets)
    return RolledBack(previous, version, canceled, revisions, datasets)


async def building_of(conn: Conn, org_id: UUID, dag: str) -> Building:
    """The rollout of a DAG that is being built. Raises NotFound, Conflict."""
    row = await (await conn.execute(_CURRENT, {"org_id": org_id, "dag": dag})).fetchone()
    if row is None:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    if row[4] != "building":
        raise Conflict(f"nothing is being built for {dag}: all of it is current")
    return Building(row[2], org_id, row[0], dag, row[1])
