"""What occupies object storage, and when unused storage is deleted."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.user.data.storage import ForeignObjects, StorageUsage, UnusedStorage
from trace_etl.policy.storage_retention import StorageRetention
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one

# Partitions that one attempt committed together share a prefix, which is counted once.
_LIST_COMMITTED = """
SELECT n.dataset, c.kind, count(*) AS prefixes, sum(c.object_count)::bigint AS objects,
       sum(c.byte_count)::bigint AS bytes, 0 AS due_prefixes, 0 AS due_bytes, 0 AS kept_prefixes,
       NULL::timestamptz AS next_sweep_at
  FROM (SELECT DISTINCT ON (p.dataset_version, p.task_id, p.attempt)
               v.dataset_uuid, p.object_count, p.byte_count,
               CASE v.dataset_version WHEN d.dataset_version THEN 'current'
                                      WHEN d.building_version THEN 'building' ELSE 'previous' END AS kind
          FROM datasets d JOIN dataset_versions v USING (dataset_uuid) JOIN partitions p
            ON p.dataset_version = v.dataset_version
         WHERE d.org_id = %(org_id)s AND v.abandoned_at IS NULL) c
  JOIN dataset_names n USING (dataset_uuid)
 GROUP BY n.dataset, c.kind
 ORDER BY n.dataset, c.kind
"""
_LIST_UNUSED_TOTALS = """
SELECT s.dataset, s.kind, count(*) AS prefixes, coalesce(sum(s.objects), 0)::bigint AS objects,
       coalesce(sum(s.bytes), 0)::bigint AS bytes,
       count(*) FILTER (WHERE s.sweep_at <= now() AND s.kept_by IS NULL) AS due_prefixes,
       coalesce(sum(s.bytes) FILTER (WHERE s.sweep_at <= now() AND s.kept_by IS NULL), 0)::bigint
           AS due_bytes,
       count(s.kept_by) AS kept_prefixes,
       min(s.sweep_at) FILTER (WHERE s.sweep_at > now() AND s.kept_by IS NULL) AS next_sweep_at
  FROM (SELECT u.*, u.unused_since + r.retention AS sweep_at FROM unused_storage u
          JOIN unnest(%(kinds)s::text[], %(retentions)s::interval[]) AS r (kind, retention)
         USING (kind)
         WHERE u.org_id = %(org_id)s) s
 GROUP BY s.dataset, s.kind
 ORDER BY s.dataset NULLS LAST, s.kind
"""


async def list_usage(conn: Conn, org_id: UUID, retention: StorageRetention) -> list[StorageUsage]:
    """Sum up the storage of an organisation by dataset and kind."""
    values = {"org_id": org_id, **retention.values()}
    committed = await fetch_all(conn, StorageUsage, _LIST_COMMITTED, values)
    return committed + await fetch_all(conn, StorageUsage, _LIST_UNUSED_TOTALS, values)


_COUNT_FOREIGN = """
SELECT coalesce(sum(l.foreign_objects), 0)::bigint AS objects,
       coalesce(sum(l.foreign_bytes), 0)::bigint AS bytes,
       CASE WHEN count(l.listed_at) = count(*) THEN min(l.listed_at) END AS listed_at
  FROM storage_areas a LEFT JOIN storage_listings l USING (prefix)
 WHERE a.org_id = %(org_id)s
"""


async def count_foreign(conn: Conn, org_id: UUID) -> ForeignObjects:
    """Count the objects that the platform did not write, as of the last listings."""
    found = await fetch_one(conn, ForeignObjects, _COUNT_FOREIGN, {"org_id": org_id})
    assert found is not None  # an aggregate has one row
    return found


_LIST_UNUSED = """
SELECT s.key, s.kind, s.dataset, s.objects, s.bytes, s.unused_since, s.sweep_at, s.kept_by
  FROM (SELECT u.*, u.unused_since + r.retention AS sweep_at FROM unused_storage u
          JOIN unnest(%(kinds)s::text[], %(retentions)s::interval[]) AS r (kind, retention)
         USING (kind)
         WHERE u.org_id = %(org_id)s) s
 WHERE (NOT %(due)s OR (s.sweep_at <= now() AND s.kept_by IS NULL))
   AND (%(after_at)s::timestamptz IS NULL OR (s.sweep_at, s.key) > (%(after_at)s, %(after_key)s))
 ORDER BY s.sweep_at, s.key LIMIT %(limit)s
"""


async def list_unused(
    conn: Conn,
    org_id: UUID,
    retention: StorageRetention,
    *,
    due: bool,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[UnusedStorage]:
    """List unused prefixes and written batches, those that are deleted first at the top."""
    at, key = after or (None, None)
    values = {"org_id": org_id, "due": due, "after_at": at, "after_key": key, "limit": limit}
    return await fetch_all(conn, UnusedStorage, _LIST_UNUSED, {**values, **retention.values()})
