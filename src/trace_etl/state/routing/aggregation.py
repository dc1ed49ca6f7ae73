"""Record which blocks of its ranges a `range_aggregator` has received. Only Postgres keeps this state."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class CompletedRange:
    """A range that the caller's blocks completed."""

    span: Range
    was_emitted_before: bool
    """Whether the range was emitted before, for another generation of the input."""


# The row lock decides which of many concurrent tasks completes a range, on all replicas. Rows are locked
# in the order of the ranges, so two tasks cannot deadlock.
_ADD_BLOCKS = """
WITH mine AS (
    SELECT t.task_id, t.job_id, t.dataset_version, r.generation_hash
      FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
     WHERE t.task_id = %(task_id)s
), added AS (
    SELECT n AS range_start, n + %(size)s::bigint - 1 AS range_end,
           int8multirange(int8range(greatest(n, %(first)s::bigint),
                                    least(n + %(size)s::bigint - 1, %(last)s::bigint), '[]'))
               AS covered
      FROM generate_series(%(first)s::bigint - %(first)s::bigint %% %(size)s::bigint,
                           %(last)s::bigint, %(size)s::bigint) n
), recorded AS (
    INSERT INTO aggregated_ranges AS a (job_id, generation_hash, dataset_version, range_start,
                                        range_end, covered, emitted_by)
    SELECT job_id, generation_hash, dataset_version, range_start, range_end, covered,
           CASE WHEN covered @> int8range(range_start, range_end, '[]') THEN task_id END
      FROM added CROSS JOIN mine ORDER BY range_start
    ON CONFLICT (job_id, generation_hash, dataset_version, range_start) DO UPDATE
       SET covered = a.covered + EXCLUDED.covered,
           emitted_by = CASE
               WHEN a.emitted_by IS NOT NULL THEN a.emitted_by
               WHEN a.covered + EXCLUDED.covered @> int8range(a.range_start, a.range_end, '[]')
               THEN %(task_id)s END
    RETURNING a.range_start, a.range_end, a.emitted_by
)
SELECT r.range_start, r.range_end, EXISTS (
           SELECT FROM aggregated_ranges o JOIN mine USING (job_id, generation_hash)
            WHERE o.range_start = r.range_start AND o.emitted_by IS NOT NULL
              AND o.dataset_version <> mine.dataset_version)
  FROM recorded r WHERE r.emitted_by = %(task_id)s ORDER BY r.range_start
"""


async def add_blocks(conn: Conn, task_id: UUID, span: Range, *, size: int) -> list[CompletedRange]:
    """Record that a task's input has these blocks. Returns each range that this completes."""
    values = {"task_id": task_id, "first": span.start, "last": span.end, "size": size}
    rows = await (await conn.execute(_ADD_BLOCKS, values)).fetchall()
    return [CompletedRange(Range(first, last), before) for first, last, before in rows]


_LIST_EMITTED = """
SELECT a.range_start, a.range_end
  FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
  JOIN aggregated_ranges a ON a.job_id = t.job_id AND a.generation_hash = r.generation_hash
   AND a.dataset_version = t.dataset_version
 WHERE t.task_id = %(task_id)s AND a.emitted_by IS NOT NULL
   AND a.range_start BETWEEN %(first)s::bigint - %(size)s::bigint + 1 AND %(last)s::bigint
 ORDER BY a.range_start
"""


async def list_emitted(conn: Conn, task_id: UUID, span: Range, *, size: int) -> list[Range]:
    """List the ranges that overlap `span` and were emitted as complete."""
    values = {"task_id": task_id, "first": span.start, "last": span.end, "size": size}
    rows = await (await conn.execute(_LIST_EMITTED, values)).fetchall()
    return [Range(first, last) for first, last in rows]
