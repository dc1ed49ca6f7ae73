"""Prefixes that nothing refers to: measure them, take the ones that are due, forget deleted ones.

Postgres decides, in transactions that do not include the object store. A prefix that `take_due` returned can
never be committed or pinned again, so it may be deleted at any later time, by any number of processes, and
again after a crash. The row is deleted last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.model.task import Fence
from trace_etl.policy.storage_retention import StorageRetention
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.partitions.new_partition import NewPartition


@dataclass(frozen=True)
class UnusedPrefix:
    """The prefix of an attempt."""

    prefix: str
    kind: str
    bucket: str | None
    """None for the bucket that the Dispatcher is configured with."""
    org_id: UUID
    task_id: UUID
    attempt: int


@dataclass(frozen=True)
class Measured:
    """What a listing of a prefix found."""

    prefix: str
    objects: int
    bytes: int


# Rows of another scheme belong to a store that this process cannot reach.
_LOCK_DUE = """
SELECT u.prefix FROM unused_prefixes u
  JOIN unnest(%(kinds)s::text[], %(retentions)s::interval[]) AS r (kind, retention) USING (kind)
 WHERE u.unused_since < now() - r.retention AND (u.held_until IS NULL OR u.held_until < now())
   AND (u.scheme IS NULL OR u.scheme = %(scheme)s)
   AND (%(org_id)s::uuid IS NULL OR u.org_id = %(org_id)s)
 ORDER BY u.unused_since LIMIT %(limit)s FOR UPDATE OF u SKIP LOCKED
"""
# A late completion of a reaped attempt is accepted until the next attempt starts. Another lease token ends
# this, without reusing the number of the attempt. A task that is locked may be completing: it is skipped.
_REVOKE_LEASES = """
UPDATE tasks SET lease_token = gen_random_uuid() WHERE task_id IN (
    SELECT t.task_id FROM tasks t JOIN unused_prefixes u ON u.task_id = t.task_id
       AND u.attempt = t.attempt
     WHERE u.prefix = ANY(%(prefixes)s) AND u.kind <> 'superseded'
       AND t.status IN ('Failed', 'Canceled') AND t.cause IS NOT NULL AND t.retry_at IS NULL
       AND t.lease_token IS NOT NULL
       FOR UPDATE OF t SKIP LOCKED)
RETURNING task_id
"""
# This statement sees every completion that ended before the leases were revoked, and no later one can
# commit. `revoked` are the tasks whose lease this transaction revoked.
_HOLD = """
UPDATE unused_prefixes u SET held_until = now() + %(hold)s
 WHERE u.prefix = ANY(%(prefixes)s) AND kept_by(u) IS NULL
   AND NOT EXISTS (
       SELECT FROM tasks t
        WHERE t.task_id = u.task_id AND t.attempt = u.attempt AND t.cause IS NOT NULL
          AND t.status IN ('Failed', 'Canceled') AND t.task_id <> ALL(%(revoked)s::uuid[]))
RETURNING u.prefix, u.kind, u.bucket, u.org_id, u.task_id, u.attempt
"""
_FORGET_COMMITTED = """
DELETE FROM unused_prefixes u WHERE u.prefix = ANY(%(prefixes)s) AND kept_by(u) = 'partition'
"""
_POSTPONE = """
UPDATE unused_prefixes SET held_until = now() + %(pause)s WHERE prefix = ANY(%(prefixes)s)
"""
_RECHECK = timedelta(minutes=10)


async def take_due(
    conn: Conn,
    retention: StorageRetention,
    *,
    scheme: str,
    org_id: UUID | None,
    hold: timedelta,
    limit: int,
) -> list[UnusedPrefix]:
    """Return prefixes to delete, and hold them so that other replicas leave them alone meanwhile.

    A prefix that something keeps is checked again later.
    """
    values = {**retention.values(), "scheme": scheme, "org_id": org_id, "limit": limit}
    rows = await (await conn.execute(_LOCK_DUE, values)).fetchall()
    if not rows:
        return []
    due: list[str] = [row[0] for row in rows]
    prefixes = {"prefixes": due}
    revoked = await (await conn.execute(_REVOKE_LEASES, prefixes)).fetchall()
    held = {**prefixes, "revoked": [row[0] for row in revoked], "hold": hold}
    taken = await fetch_all(conn, UnusedPrefix, _HOLD, held)
    kept = sorted(set(due) - {prefix.prefix for prefix in taken})
    if kept:
        await conn.execute(_FORGET_COMMITTED, {"prefixes": kept})
        await conn.execute(_POSTPONE, {"prefixes": kept, "pause": _RECHECK})
    return taken


_FORGET = "DELETE FROM unused_prefixes WHERE prefix = ANY(%(prefixes)s)"


async def forget(conn: Conn, prefixes: Sequence[str]) -> None:
    """Delete the rows of prefixes whose objects are deleted."""
    await conn.execute(_FORGET, {"prefixes": list(prefixes)})


_FIND_UNMEASURED = """
SELECT prefix, kind, bucket, org_id, task_id, attempt FROM unused_prefixes
 WHERE objects IS NULL AND (scheme IS NULL OR scheme = %(scheme)s)
 ORDER BY unused_since LIMIT %(limit)s
"""


async def find_unmeasured(conn: Conn, *, scheme: str, limit: int) -> list[UnusedPrefix]:
    """Return prefixes whose size is unknown."""
    values = {"scheme": scheme, "limit": limit}
    return await fetch_all(conn, UnusedPrefix, _FIND_UNMEASURED, values)


_RECORD_SIZES = """
UPDATE unused_prefixes u SET objects = m.objects, bytes = m.bytes
  FROM unnest(%(prefixes)s::text[], %(objects)s::bigint[], %(bytes)s::bigint[])
       AS m (prefix, objects, bytes)
 WHERE u.prefix = m.prefix
"""


async def record_sizes(conn: Conn, measured: Sequence[Measured]) -> None:
    """Record the sizes of prefixes."""
    values = {
        "prefixes": [m.prefix for m in measured],
        "objects": [m.objects for m in measured],
        "bytes": [m.bytes for m in measured],
    }
    await conn.execute(_RECORD_SIZES, values)


_LIST_PUBLISHED = """
SELECT batch_uri FROM buffer_publishes
 WHERE task_id = ANY(%(task_ids)s::uuid[]) AND swept_at IS NULL
"""


async def list_published_batches(conn: Conn, task_ids: Sequence[UUID]) -> list[str]:
    """List the batches that tasks published. They are not part of the uncommitted objects."""
    if not task_ids:
        return []
    rows = await (await conn.execute(_LIST_PUBLISHED, {"task_ids": list(task_ids)})).fetchall()
    return [row[0] for row in rows]


_NOTE_UNCOMMITTED = """
INSERT INTO unused_prefixes (prefix, kind, org_id, scheme, bucket, dataset_uuid, dataset_version,
                             task_id, attempt, objects, bytes)
SELECT DISTINCT ON (n.ref->>'prefix') n.ref->>'prefix', 'uncommitted', t.org_id, n.ref->>'scheme',
       n.ref->>'bucket', v.dataset_uuid, v.dataset_version, t.task_id, t.attempt, n.objects, n.bytes
  FROM unnest(%(versions)s::uuid[], %(refs)s::jsonb[], %(objects)s::int[], %(bytes)s::bigint[])
       AS n (dataset_version, ref, objects, bytes)
  JOIN dataset_versions v ON v.dataset_version = n.dataset_version
  JOIN tasks t ON t.task_id = %(task_id)s
 WHERE n.ref ? 'prefix'
   AND NOT EXISTS (SELECT FROM partitions p
                    WHERE p.task_id = t.task_id AND p.storage_ref->>'prefix' = n.ref->>'prefix')
ON CONFLICT (prefix) DO NOTHING
"""


async def note_uncommitted(conn: Conn, fence: Fence, outputs: Sequence[NewPartition]) -> None:
    """Record the outputs that no partition points at, so that the storage sweeper deletes them."""
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in outputs],
        "refs": [Jsonb(n.storage_ref) for n in outputs],
        "objects": [n.object_count for n in outputs],
        "bytes": [n.byte_count for n in outputs],
    }
    await conn.execute(_NOTE_UNCOMMITTED, values)
