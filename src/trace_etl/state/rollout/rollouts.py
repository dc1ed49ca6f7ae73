"""Rollouts: the record of each change of a DAG from one version to another."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.model.errors import Conflict, NotFound
from trace_etl.state.catalog import names
from trace_etl.state.db.pool import Conn

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))"


async def lock(conn: Conn, org_id: UUID, dag: str) -> None:
    """Allow one deploy, swap or rollback of a DAG at a time, over all replicas, until commit."""
    await conn.execute(_LOCK, {"key": _lock_key(org_id, dag)})


_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0))"


async def try_lock(conn: Conn, org_id: UUID, dag: str) -> bool:
    """Take the lock of `lock` without waiting. Returns False if another transaction holds it."""
    row = await (await conn.execute(_TRY_LOCK, {"key": _lock_key(org_id, dag)})).fetchone()
    return bool(row and row[0])


def _lock_key(org_id: UUID, dag: str) -> str:
    return f"deploy:{org_id}:{dag}"


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
    """Record the rollout of a version, before the DAG switches to it.

    A rollout that is still building is superseded. A rollback then restores the version that
    was complete before the superseded rollout.
    """
    row = await (await conn.execute(_SUPERSEDE, {"dag_id": dag_id})).fetchone()
    values = {
        "dag_id": dag_id,
        "dag_version": dag_version,
        "superseded": row is not None,
        "previous": row[0] if row else None,
        "building": building,
    }
    created = await (await conn.execute(_BEGIN, values)).fetchone()
    if created is None:
        raise LookupError(f"no DAG {dag_id}")
    return created[0]


_ADD_TARGETS = """
INSERT INTO rollout_targets (rollout_id, dataset_uuid, from_version, to_version)
SELECT %(rollout_id)s, d.dataset_uuid, d.dataset_version, d.building_version
  FROM datasets d JOIN jobs j USING (job_id)
 WHERE j.dag_id = %(dag_id)s AND d.building_version IS NOT NULL
"""
# If a published name moves to another output, the new output must cover the old one.
_ADD_MOVED_NAMES = """
INSERT INTO rollout_targets (rollout_id, dataset_uuid, from_version, to_version)
SELECT %(rollout_id)s, d.dataset_uuid, old.dataset_version,
       coalesce(d.building_version, d.dataset_version)
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
  JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
  JOIN publications p ON p.org_id = d.org_id AND p.name = e.name
   AND p.dataset_uuid <> e.dataset_uuid
  JOIN datasets old ON old.dataset_uuid = p.dataset_uuid
 WHERE old.dataset_version IS NOT NULL
"""


async def record_targets(
    conn: Conn, rollout_id: UUID, dag_id: UUID, entries: list[dict[str, Any]]
) -> None:
    """Record which old generations the new ones must cover before the pointers move."""
    values = {"rollout_id": rollout_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_ADD_TARGETS, values)
    await conn.execute(_ADD_MOVED_NAMES, values)


# --- rollouts that are being built ------------------------------------------------------------


@dataclass(frozen=True)
class BuildingRollout:
    """A rollout whose new generations are being built."""

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


async def list_building(conn: Conn) -> list[BuildingRollout]:
    """List every rollout whose pointers have not moved yet."""
    return [BuildingRollout(*row) for row in await (await conn.execute(_BUILDING)).fetchall()]


async def get_building(conn: Conn, org_id: UUID, dag: str) -> BuildingRollout:
    """Return the rollout of a DAG that is being built. Raises NotFound, Conflict."""
    current = await get_current(conn, org_id, dag)
    if current.rollout_id is None or current.state != "building":
        raise Conflict(
            f"the DAG {dag} has no rollout in progress; `trace rollout {dag}` shows the last one"
        )
    return BuildingRollout(current.rollout_id, org_id, current.dag_id, dag, current.dag_version)


_BUILDING_REVISIONS = """
SELECT building_revision_id FROM jobs
 WHERE dag_id = %(dag_id)s AND building_revision_id IS NOT NULL
"""


async def list_building_revisions(conn: Conn, dag_id: UUID) -> list[UUID]:
    """List the revisions of a DAG that are being built."""
    rows = await (await conn.execute(_BUILDING_REVISIONS, {"dag_id": dag_id})).fetchall()
    return [row[0] for row in rows]


@dataclass(frozen=True)
class CurrentVersion:
    """The deployed version of a DAG, and the rollout that made it current."""

    dag_id: UUID
    dag_version: UUID
    rollout_id: UUID | None
    previous_version: UUID | None
    state: str | None


_CURRENT = """
SELECT g.dag_id, g.dag_version, r.rollout_id, r.previous_version, r.state
  FROM dags g LEFT JOIN LATERAL (
       SELECT * FROM rollouts r
        WHERE r.dag_id = g.dag_id AND r.dag_version = g.dag_version
          AND r.state IN ('building', 'complete')
        ORDER BY r.started_at DESC LIMIT 1) r ON true
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND g.dag_version IS NOT NULL
"""


async def get_current(conn: Conn, org_id: UUID, dag: str) -> CurrentVersion:
    """Return the deployed version of a DAG. Raises NotFound."""
    row = await (await conn.execute(_CURRENT, {"org_id": org_id, "dag": dag})).fetchone()
    if row is None:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    return CurrentVersion(*row)


# --- steps of deploys, swaps and rollbacks ----------------------------------------------------

_PUBLICATIONS = "SELECT publications FROM dag_versions WHERE dag_version = %(dag_version)s"


async def publish_names(conn: Conn, org_id: UUID, dag_id: UUID, dag_version: UUID) -> None:
    """Publish the names that a version of the DAG publishes, and no others. Raises NameTaken."""
    row = await (await conn.execute(_PUBLICATIONS, {"dag_version": dag_version})).fetchone()
    if row is not None:
        await names.publish(conn, org_id, dag_id, row[0])


_CLEAR_DATASETS = """
UPDATE datasets d SET building_version = NULL FROM jobs j
 WHERE j.dag_id = %(dag_id)s AND d.job_id = j.job_id AND d.building_version IS NOT NULL
"""


async def clear_building_datasets(conn: Conn, dag_id: UUID) -> None:
    """Clear the pointers to generations that are being built."""
    await conn.execute(_CLEAR_DATASETS, {"dag_id": dag_id})


_SWITCH = """
UPDATE dags SET dag_version = %(dag_version)s, deployed_at = now() WHERE dag_id = %(dag_id)s
"""


async def switch_version(conn: Conn, dag_id: UUID, dag_version: UUID) -> None:
    """Make a version the deployed version of its DAG."""
    await conn.execute(_SWITCH, {"dag_id": dag_id, "dag_version": dag_version})
