"""Partitions of operators that keep rows, such as a compaction: prove that no row was lost or changed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_etl.api.task.verification import Disconnected, VerifiedRange, join_ranges
from trace_etl.model.errors import RowsChanged
from trace_etl.model.task import Fence
from trace_etl.policy.commit.kept_rows import RowSet, has_equal_columns, keeps_all_rows
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all
from trace_etl.state.partitions.new_partition import NewPartition

# The partitions of the last input that the task read for each output. An input with a `where` is left out.
_INPUTS = """
SELECT n.place, p.partition_key, p.range_start, p.range_end, p.row_sum, p.columns, p.verified,
       pg_visible_in_snapshot(p.commit_xid, t.pinned_snapshot) AS is_seen
  FROM tasks t
  JOIN job_inputs i ON i.revision_id = t.revision_id AND i.input_index = (
       SELECT max(input_index) FROM job_inputs WHERE revision_id = t.revision_id)
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  JOIN dataset_versions v
    ON v.dataset_version = input_generation(i, d, t.dataset_uuid, t.dataset_version)
 CROSS JOIN unnest(%(starts)s::bigint[], %(ends)s::bigint[])
            WITH ORDINALITY AS n (first_block, last_block, place)
  JOIN partitions p ON p.dataset_version = v.dataset_version
   AND overlaps_blocks(p, v.generation_no, n.first_block, n.last_block)
 WHERE t.task_id = %(task_id)s AND i.where_map IS NULL
 ORDER BY n.place, p.range_start
"""


@dataclass(frozen=True)
class _InputPartition:
    place: int
    partition_key: str
    range_start: int
    range_end: int
    row_sum: str | None
    columns: list[dict[str, str]]
    verified: dict[str, Any] | None
    is_seen: bool


async def prove_kept_rows(
    conn: Conn, fence: Fence, outputs: Sequence[NewPartition]
) -> list[NewPartition]:
    """Compare outputs with the partitions they were made from, and give them their verification.

    An output is returned unchanged if it cannot be compared: it has only a part of an input partition, an
    input was rewritten meanwhile or was made by an older release, or its columns differ and the writer did
    not report the sums of the rows. Raises RowsChanged.
    """
    values = {
        "task_id": fence.task_id,
        "starts": [item.range_start for item in outputs],
        "ends": [item.range_end for item in outputs],
    }
    rows = await fetch_all(conn, _InputPartition, _INPUTS, values)
    return [
        _prove(item, [row for row in rows if row.place == place])
        for place, item in enumerate(outputs, start=1)
    ]


def _prove(item: NewPartition, inputs: Sequence[_InputPartition]) -> NewPartition:
    if not _is_comparable(item, inputs):
        return item
    rows = RowSet(item.row_sum, item.columns, item.row_sums)
    parts = [RowSet(row.row_sum, row.columns) for row in inputs]
    if item.row_sums is None and not has_equal_columns(rows, parts):
        return item
    if not keeps_all_rows(rows, parts):
        keys = ", ".join(row.partition_key for row in inputs[:3])
        raise RowsChanged(
            f"partition {item.partition_key} does not have exactly the rows of its inputs ({keys}"
            f"{', …' if len(inputs) > 3 else ''}): rows were lost, added or changed. Verify the inputs "
            "with `trace verify`, then run the task again"
        )
    return replace(item, verified=_join_verified(inputs))


def _is_comparable(item: NewPartition, inputs: Sequence[_InputPartition]) -> bool:
    if item.span is None or item.row_sum is None or not inputs:
        return False
    return all(
        row.is_seen
        and row.row_sum is not None
        and item.span.start <= row.range_start
        and row.range_end <= item.span.end
        for row in inputs
    )


def _join_verified(inputs: Sequence[_InputPartition]) -> dict[str, Any] | None:
    verified = [row.verified for row in inputs]
    if None in verified:
        return None
    try:
        return join_ranges([VerifiedRange.model_validate(item) for item in verified]).model_dump()
    except Disconnected:
        return None  # there is a gap between the inputs
