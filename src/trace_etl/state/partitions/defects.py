"""What a checker says of its input: recorded, and made again by whoever made it, once."""

from uuid import UUID

from trace_etl.model.errors import Forbidden
from trace_etl.model.task import Fence
from trace_etl.state.db.pool import Conn
from trace_etl.state.partitions.invalidations import TOLD, NewInvalidation, columns, creation

_SCOPE = "SELECT range_start, range_end FROM tasks WHERE task_id = %(task_id)s"

# Nobody is told to read it again as it is: the one who made it makes it again, and whoever read it,
# the checker among them, follows when it is rewritten. What was made again for a doubt already is
# left as it is: the same work would give the same rows, and be doubted, without end.
_RECORD = f"""
WITH doubt AS MATERIALIZED (
    SELECT n.*, gen_random_uuid() AS invalidation_id
      FROM {TOLD}
), maker AS MATERIALIZED (
    SELECT DISTINCT ON (n.invalidation_id, t.task_id)
           n.invalidation_id, t.task_id, t.org_id, t.job_id, o.revision_id, t.runtime, t.bulk,
           t.dataset_uuid, t.dataset_version, t.cursor_value, t.max_attempts, t.max_concurrency,
           t.timeout_seconds, t.lease_seconds,
           coalesce(t.range_start, p.range_start) AS first,
           coalesce(t.range_end, p.range_end) AS last,
           CASE WHEN t.range_start IS NULL THEN p.partition_key ELSE t.partition_key END AS key,
           before.invalidation_id IS NOT NULL AS is_second,
           r.task_id AS asked, r.status = 'Failed' AND r.retry_at IS NULL
                               OR r.status = 'Canceled' AS is_lost
      FROM doubt n
      JOIN dataset_versions v ON v.dataset_version = n.dataset_version
      JOIN partitions p ON p.dataset_version = n.dataset_version
       AND (p.partition_key = n.partition_key
            OR (n.kind = 'row_range'
                AND overlaps_blocks(p, v.generation_no, n.range_start, n.range_end)))
      JOIN tasks t ON t.task_id = p.task_id
      JOIN jobs j ON j.job_id = t.job_id AND j.active
      JOIN job_outputs o ON o.dataset_version = p.dataset_version
       AND o.revision_id IN (j.revision_id, j.building_revision_id)
      -- Only a doubt is about what the task itself writes.
      LEFT JOIN invalidations before ON before.invalidation_id = t.invalidation_id
       AND before.dataset_version = p.dataset_version
      LEFT JOIN tasks r ON r.job_id = t.job_id AND r.dedupe_key = 'doubt:' || t.task_id
     ORDER BY n.invalidation_id, t.task_id, o.revision_id = j.revision_id DESC
), judged AS (
    SELECT n.*, CASE
           WHEN m.n IS NULL THEN 'not made again: no job makes this generation any more'
           WHEN m.is_second THEN 'not made again: it was, for this very reason, by task '
                                 || m.task_id || '; look at the node, then `trace invalidate '
                                 || '--rebuild`'
           WHEN m.is_lost THEN 'making it again failed before: task ' || m.asked
           ELSE 'made again' END AS fate
      FROM doubt n LEFT JOIN (
           SELECT invalidation_id, count(*) AS n, bool_and(is_second) AS is_second,
                  coalesce(bool_and(is_lost), false) AS is_lost,
                  min(task_id::text) FILTER (WHERE is_second) AS task_id,
                  min(asked::text) FILTER (WHERE is_lost) AS asked
             FROM maker GROUP BY invalidation_id) m USING (invalidation_id)
), made AS (
    INSERT INTO invalidations (invalidation_id, org_id, dataset_uuid, dataset_version, kind,
                               partition_key, range_start, range_end, filter, reason, once_key,
                               made_by, task_id, attempt, routed_at)
    SELECT n.invalidation_id, mine.org_id, n.dataset_uuid, n.dataset_version, n.kind,
           n.partition_key, n.range_start, n.range_end, n.filter,
           concat_ws('; ', nullif(n.reason, ''), n.fate), n.once_key, 'task:' || mine.task_id,
           mine.task_id, %(attempt)s, now()
      FROM judged n CROSS JOIN (SELECT task_id, org_id FROM tasks
                                 WHERE task_id = %(task_id)s) mine
    ON CONFLICT ON CONSTRAINT invalidations_once DO NOTHING
    RETURNING invalidation_id
), """ + creation("""
    SELECT DISTINCT ON (m.task_id)
           m.org_id, m.job_id, m.revision_id, m.runtime, m.bulk, 'doubt:' || m.task_id,
           m.dataset_uuid, m.dataset_version, m.key, m.first, m.last, m.cursor_value,
           m.max_attempts, m.max_concurrency, m.timeout_seconds, m.lease_seconds,
           m.invalidation_id
      FROM maker m JOIN made USING (invalidation_id)
     WHERE NOT m.is_second
""")


async def record(conn: Conn, fence: Fence, doubts: list[NewInvalidation]) -> list[UUID]:
    """Remember what is doubted and have it made again. Returns the tasks that do so.

    Raises Forbidden for what the checker was not asked to look at.
    """
    await _require_inside(conn, fence, doubts)
    values = {
        "task_id": fence.task_id,
        "attempt": fence.attempt,
        **columns(doubts),
        "once_keys": [f"doubt:{_key(n)}" for n in doubts],
    }
    return [row[0] for row in await (await conn.execute(_RECORD, values)).fetchall()]


def _key(doubt: NewInvalidation) -> str:
    scope = doubt.partition_key or f"{doubt.range_start}-{doubt.range_end}"
    return doubt.once_key or f"{doubt.kind}:{scope}"


async def _require_inside(conn: Conn, fence: Fence, doubts: list[NewInvalidation]) -> None:
    row = await (await conn.execute(_SCOPE, {"task_id": fence.task_id})).fetchone()
    first, last = row or (None, None)
    for doubt in doubts:
        if first is None or last is None or doubt.range_start is None or doubt.range_end is None:
            continue
        if doubt.range_end < first or last < doubt.range_start:
            key = doubt.partition_key or f"{doubt.range_start}-{doubt.range_end}"
            raise Forbidden(f"blocks {key} are not this task's to check")
