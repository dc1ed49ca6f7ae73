"""Listings of the prefixes under which the platform writes, to find objects that no row refers to."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one


@dataclass(frozen=True)
class StorageArea:
    """A prefix that the platform writes under: of a generation, a buffered dataset or an organisation."""

    prefix: str
    org_id: UUID
    dataset_uuid: UUID | None
    dataset_version: UUID | None
    area: str
    """`cold`, `buffers`, `scratch` or `exports`."""


@dataclass(frozen=True)
class AttemptObjects:
    """The objects of one attempt that a listing found."""

    task_id: UUID
    attempt: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class AreaTotals:
    """What a listing of an area found. Foreign objects are not under the prefix of an attempt."""

    objects: int
    bytes: int
    foreign_objects: int
    foreign_bytes: int


_TAKE_DUE = """
WITH due AS (
    SELECT a.prefix FROM storage_areas a LEFT JOIN storage_listings l USING (prefix)
     WHERE (l.listed_at IS NULL OR l.listed_at < now() - %(interval)s)
       AND (l.held_until IS NULL OR l.held_until < now())
     ORDER BY l.listed_at NULLS FIRST, a.prefix LIMIT 1
), taken AS (
    INSERT INTO storage_listings AS l (prefix, held_until) SELECT prefix, now() + %(hold)s FROM due
    ON CONFLICT (prefix) DO UPDATE SET held_until = EXCLUDED.held_until
     WHERE l.held_until IS NULL OR l.held_until < now()
    RETURNING prefix
)
SELECT a.prefix, a.org_id, a.dataset_uuid, a.dataset_version, a.area
  FROM storage_areas a JOIN taken USING (prefix) LIMIT 1
"""


async def take_due(conn: Conn, *, interval: timedelta, hold: timedelta) -> StorageArea | None:
    """Return the area whose last listing is oldest, and hold it so that other replicas skip it."""
    return await fetch_one(conn, StorageArea, _TAKE_DUE, {"interval": interval, "hold": hold})


# The listing is older than this statement, so an attempt that committed meanwhile is seen as committed.
# Scratch and exports are kept from the end of their attempt. Other prefixes are kept from now: no row says
# when they became unused.
_REGISTER = """
WITH found AS (
    SELECT f.*, %(prefix)s || f.task_id || '/' || f.attempt || '/' AS prefix
      FROM unnest(%(task_ids)s::uuid[], %(attempts)s::int[], %(objects)s::bigint[],
                  %(bytes)s::bigint[]) AS f (task_id, attempt, objects, bytes)
)
INSERT INTO unused_prefixes AS u (prefix, kind, org_id, dataset_uuid, dataset_version, task_id, attempt,
                                  unused_since, objects, bytes)
SELECT f.prefix, CASE WHEN %(area)s IN ('scratch', 'exports') THEN %(area)s ELSE 'uncommitted' END,
       %(org_id)s, %(dataset_uuid)s, %(dataset_version)s, f.task_id, f.attempt,
       CASE WHEN %(area)s IN ('scratch', 'exports') THEN coalesce(a.ended_at, t.finished_at, now())
            ELSE now() END,
       f.objects, f.bytes
  FROM found f
  LEFT JOIN tasks t ON t.task_id = f.task_id
  LEFT JOIN task_attempts a ON a.task_id = f.task_id AND a.attempt = f.attempt
 WHERE NOT may_still_commit(f.task_id, f.attempt)
   AND NOT EXISTS (SELECT FROM partitions p
                    WHERE p.task_id = f.task_id AND p.storage_ref->>'prefix' = f.prefix)
ON CONFLICT (prefix) DO UPDATE SET objects = EXCLUDED.objects, bytes = EXCLUDED.bytes
RETURNING u.xmax::text = '0'
"""


async def register(conn: Conn, area: StorageArea, found: Sequence[AttemptObjects]) -> int:
    """Record the prefixes of ended attempts that no partition refers to. Returns how many are new."""
    values = {
        **vars(area),
        "task_ids": [f.task_id for f in found],
        "attempts": [f.attempt for f in found],
        "objects": [f.objects for f in found],
        "bytes": [f.bytes for f in found],
    }
    rows = await (await conn.execute(_REGISTER, values)).fetchall()
    return sum(is_new for (is_new,) in rows)


_FINISH = """
UPDATE storage_listings
   SET listed_at = now(), held_until = NULL, objects = %(objects)s, bytes = %(bytes)s,
       foreign_objects = %(foreign_objects)s, foreign_bytes = %(foreign_bytes)s
 WHERE prefix = %(prefix)s
"""


async def finish(conn: Conn, area: StorageArea, totals: AreaTotals) -> None:
    """Record that an area was listed as a whole."""
    await conn.execute(_FINISH, {"prefix": area.prefix, **vars(totals)})
