"""Point partitions at an attempt's output, and delete those that new ones cover."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.errors import ExclusionViolation
from psycopg.types.json import Jsonb

from trace_etl.model.task import Fence
from trace_etl.policy.commit.commit_decision import ExistingPartition
from trace_etl.policy.commit.kept_rows import RowSet, keeps_all_rows
from trace_etl.state.db.pool import Conn
from trace_etl.state.partitions.new_partition import NewPartition


class ConcurrentCommit(Exception):
    """Another transaction committed an overlapping partition meanwhile. Retry the commit."""


_DELETE_COVERED = """
WITH lineage AS (
    DELETE FROM partition_inputs l USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
     WHERE l.dataset_version = g.v AND l.partition_key = g.k
)
DELETE FROM partitions p USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
 WHERE p.dataset_version = g.v AND p.partition_key = g.k
RETURNING p.dataset_version, p.partition_key, p.row_sum, p.columns
"""
CoveredRows = dict[tuple[UUID, str], RowSet]


async def delete_covered(conn: Conn, covered: list[tuple[UUID, str]]) -> CoveredRows:
    """Delete the partitions that new ones cover. Returns their rows, as their certificates describe them."""
    values = {"versions": [v for v, _ in covered], "keys": [key for _, key in covered]}
    rows = await (await conn.execute(_DELETE_COVERED, values)).fetchall()
    return {(version, key): RowSet(row_sum, columns) for version, key, row_sum, columns in rows}


@dataclass(frozen=True)
class ReplacedPartitions:
    """The committed partitions that a new one replaces."""

    existing: list[ExistingPartition]
    covered: list[str]
    """Keys of replaced partitions that differ from the key of the new one."""

    def get_hash(self) -> str | None:
        """Return the content hash of the replaced partition; None if there is not exactly one."""
        return self.existing[0].content_hash if len(self.existing) == 1 else None

    def has_same_rows(self, item: NewPartition, rows: CoveredRows) -> bool:
        """Return whether the certificates prove that readers see the same rows as before."""
        if item.content_hash is not None and item.content_hash == self.get_hash():
            return True
        parts = [rows[item.dataset_version, key] for key in self.covered]
        is_whole = len(parts) == len(self.existing)
        return is_whole and keeps_all_rows(RowSet(item.row_sum, item.columns), parts)


# A pointer only moves to an attempt that read its inputs later. The statement compares with the current
# row, so an older output cannot replace a newer one. A pointer that moved, or that replaced others, is a
# rewrite. Readers learn of it from the delivery log, unless the rows are the same.
_MOVE_POINTERS = """
WITH moved AS (
    INSERT INTO partitions AS p (
           dataset_version, generation_no, partition_key, range_start, range_end, storage_ref,
           row_count, byte_count, object_count, columns, config_hash, verified, content_hash,
           row_sum, files, task_id, attempt, read_snapshot, revision_id, dag_version)
    SELECT v.dataset_version, v.generation_no, n.partition_key, n.range_start, n.range_end,
           n.storage_ref, n.row_count, n.byte_count, n.object_count, n.columns, n.config_hash,
           n.verified, n.content_hash, n.row_sum, n.files, t.task_id, t.attempt, t.pinned_snapshot,
           t.revision_id, CASE WHEN t.revision_id IN (j.revision_id, j.building_revision_id)
                               THEN g.dag_version END
      FROM unnest(%(versions)s::uuid[], %(keys)s::text[], %(starts)s::bigint[], %(ends)s::bigint[],
                  %(refs)s::jsonb[], %(rows)s::bigint[], %(bytes)s::bigint[], %(objects)s::int[],
                  %(columns)s::jsonb[], %(hashes)s::text[], %(verified)s::jsonb[],
                  %(contents)s::text[], %(sums)s::text[], %(files)s::jsonb[])
           AS n (dataset_version, partition_key, range_start, range_end, storage_ref, row_count,
                 byte_count, object_count, columns, config_hash, verified, content_hash, row_sum, files)
      JOIN dataset_versions v ON v.dataset_version = n.dataset_version
      JOIN tasks t ON t.task_id = %(task_id)s
      JOIN jobs j ON j.job_id = t.job_id JOIN dags g ON g.dag_id = j.dag_id
    ON CONFLICT (dataset_version, partition_key) DO UPDATE
       SET storage_ref = EXCLUDED.storage_ref, row_count = EXCLUDED.row_count,
           byte_count = EXCLUDED.byte_count, object_count = EXCLUDED.object_count,
           columns = EXCLUDED.columns, config_hash = EXCLUDED.config_hash,
           verified = EXCLUDED.verified,
           content_hash = EXCLUDED.content_hash, row_sum = EXCLUDED.row_sum, files = EXCLUDED.files,
           revision_id = EXCLUDED.revision_id, dag_version = EXCLUDED.dag_version,
           task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt,
           read_snapshot = EXCLUDED.read_snapshot, commit_xid = EXCLUDED.commit_xid,
           committed_at = now()
     WHERE NOT read_later(p.read_snapshot, EXCLUDED.read_snapshot)
    RETURNING p.dataset_version, p.partition_key, p.range_start, p.range_end, p.content_hash,
              p.row_count, p.task_id, p.attempt, p.xmax::text <> '0' AS has_moved
), result AS (
    SELECT v.dataset_uuid, m.*, o.existing, o.old_hash, o.is_same,
           m.has_moved OR o.is_covering AS is_rewrite
      FROM moved m JOIN dataset_versions v ON v.dataset_version = m.dataset_version
      JOIN unnest(%(versions)s::uuid[], %(keys)s::text[], %(existing)s::int[], %(old)s::text[],
                  %(same)s::boolean[], %(covering)s::boolean[])
           AS o (dataset_version, partition_key, existing, old_hash, is_same, is_covering)
        ON o.dataset_version = m.dataset_version AND o.partition_key = m.partition_key
), delivered AS (
    INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key, range_start,
                            range_end, old_hash, new_hash, row_count, task_id, attempt)
    SELECT dataset_uuid, dataset_version, CASE WHEN is_rewrite THEN 'replaced' ELSE 'published' END,
           partition_key, range_start, range_end, old_hash, content_hash, row_count, task_id, attempt
      FROM result WHERE NOT is_same
)
SELECT dataset_uuid, dataset_version, partition_key, range_start, range_end, is_rewrite,
       has_moved AND existing = 0 AS is_surprise
  FROM result
"""


@dataclass(frozen=True)
class MovedPartition:
    """A partition whose pointer moved."""

    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    range_start: int | None
    range_end: int | None
    is_rewrite: bool
    is_surprise: bool
    """Another transaction created the partition after this one looked for it."""


async def move_pointers(
    conn: Conn,
    fence: Fence,
    new: Sequence[NewPartition],
    replaced: Sequence[ReplacedPartitions],
    rows: CoveredRows,
) -> list[MovedPartition]:
    """Point partitions at their new output. Raises ConcurrentCommit."""
    values = {
        "task_id": fence.task_id,
        "versions": [n.dataset_version for n in new],
        "keys": [n.partition_key for n in new],
        "starts": [n.range_start for n in new],
        "ends": [n.range_end for n in new],
        "refs": [Jsonb(n.storage_ref) for n in new],
        "rows": [n.row_count for n in new],
        "bytes": [n.byte_count for n in new],
        "objects": [n.object_count for n in new],
        "columns": [Jsonb(n.columns) for n in new],
        "hashes": [n.config_hash for n in new],
        "verified": [None if n.verified is None else Jsonb(n.verified) for n in new],
        "contents": [n.content_hash for n in new],
        "sums": [n.row_sum for n in new],
        "files": [None if n.files is None else Jsonb(n.files) for n in new],
        "existing": [len(r.existing) for r in replaced],
        "old": [r.get_hash() for r in replaced],
        "same": [r.has_same_rows(n, rows) for n, r in zip(new, replaced, strict=True)],
        "covering": [bool(r.covered) for r in replaced],
    }
    try:
        found = await (await conn.execute(_MOVE_POINTERS, values)).fetchall()
    except ExclusionViolation as error:
        raise ConcurrentCommit from error
    moved = [MovedPartition(*row) for row in found]
    if any(m.is_surprise for m in moved):
        raise ConcurrentCommit  # the content hash of that partition was not compared
    return moved
