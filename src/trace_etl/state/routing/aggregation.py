"""What `range_aggregator` has seen of its ranges. The rows are its memory: no process has any."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn


@dataclass(frozen=True)
class Complete:
    """A range that the caller's piece completed."""

    span: Range
    is_again: bool
    """Told of before, for another generation of the input."""


# The row's own lock makes the last of many pieces the one that completes a range, over all
# replicas; in order of the ranges, so that two pieces cannot wait for each other.
_COVER = """
WITH mine AS (
    SELECT t.task_id, t.job_id, t.dataset_version, r.generation_hash
      FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
     WHERE t.task_id = %(task_id)s
), piece AS (
    SELECT n AS range_start, n + %(size)s::bigint - 1 AS range_end,
           int8multirange(int8range(greatest(n, %(first)s::bigint),
                                    least(n + %(size)s::bigint - 1, %(last)s::bigint), '[]'))
               AS covered
      FROM generate_series(%(first)s::bigint - %(first)s::bigint %% %(size)s::bigint,
                           %(last)s::bigint, %(size)s::bigint) n
), seen AS (
    INSERT INTO aggregated_ranges AS a (job_id, generation_hash, dataset_version, range_start,
                                        range_end, covered, emitted_by)
    SELECT job_id, generation_hash, dataset_version, range_start, range_end, covered,
           CASE WHEN covered @> int8range(range_start, range_end, '[]') THEN task_id END
      FROM piece CROSS JOIN mine ORDER BY range_start
    ON CONFLICT (job_id, generation_hash, dataset_version, range_start) DO UPDATE
       SET covered = a.covered + EXCLUDED.covered,
           emitted_by = CASE
               WHEN a.emitted_by IS NOT NULL THEN a.emitted_by
               WHEN a.covered + EXCLUDED.covered @> int8range(a.range_start, a.range_end, '[]')
               THEN %(task_id)s END
    RETURNING a.range_start, a.range_end, a.emitted_by
)
SELECT s.range_start, s.range_end, EXISTS (
           SELECT FROM aggregated_ranges o JOIN mine USING (job_id, generation_hash)
            WHERE o.range_start = s.range_start AND o.emitted_by IS NOT NULL
              AND o.dataset_version <> mine.dataset_version)
  FROM seen s WHERE s.emitted_by = %(task_id)s ORDER BY s.range_start
"""


async def cover(conn: Conn, task_id: UUID, span: Range, *, size: int) -> list[Complete]:
    """Note that a task's input now has these blocks. Returns the ranges this completes, once."""
    values = {"task_id": task_id, "first": span.start, "last": span.end, "size": size}
    rows = await (await conn.execute(_COVER, values)).fetchall()
    return [Complete(Range(first, last), again) for first, last, again in rows]


_TOLD = """
SELECT a.range_start, a.range_end
  FROM tasks t JOIN job_revisions r ON r.revision_id = t.revision_id
  JOIN aggregated_ranges a ON a.job_id = t.job_id AND a.generation_hash = r.generation_hash
   AND a.dataset_version = t.dataset_version
 WHERE t.task_id = %(task_id)s AND a.emitted_by IS NOT NULL
   AND a.range_start BETWEEN %(first)s::bigint - %(size)s::bigint + 1 AND %(last)s::bigint
 ORDER BY a.range_start
"""


async def told(conn: Conn, task_id: UUID, span: Range, *, size: int) -> list[Range]:
    """The ranges that were told of as complete and share blocks with this one."""
    values = {"task_id": task_id, "first": span.start, "last": span.end, "size": size}
    rows = await (await conn.execute(_TOLD, values)).fetchall()
    return [Range(first, last) for first, last in rows]
