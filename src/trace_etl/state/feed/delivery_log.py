"""The delivery log: number committed changes of datasets, read them by cursor, delete old ones."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from trace_etl.api.user.data.changes import DatasetChange
from trace_etl.dag.operators import COLUMN_KEEPERS
from trace_etl.model.errors import Fault, Invalid
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_dicts

_NUMBER = "SELECT number_deliveries(%(limit)s, %(keepers)s)"
_HAS_NEW = "SELECT EXISTS (SELECT FROM deliveries WHERE number IS NULL)"


async def number_new(conn: Conn, *, limit: int) -> int:
    """Number one batch of committed changes. Returns how many rows it handled."""
    row = await (await conn.execute(_HAS_NEW)).fetchone()
    if row is None or not row[0]:
        return 0  # nothing to number, so no lock is taken
    values = {"limit": limit, "keepers": sorted(COLUMN_KEEPERS)}
    row = await (await conn.execute(_NUMBER, values)).fetchone()
    return row[0] if row else 0


@dataclass(frozen=True)
class LogCursor:
    """A position in the logs of a published name: its dataset, and its hot table if it has one.

    The mark identifies the log and the datasets, so that a cursor of another log is recognised.
    """

    number: int
    hot_number: int
    mark: str

    def __str__(self) -> str:
        hot = f"+{self.hot_number}" if self.hot_number else ""
        return f"{self.number}{hot}-{self.mark}"


_CURSOR = re.compile(r"(\d{1,18})(?:\+(\d{1,18}))?-([0-9a-f]{8})")


def parse_cursor(text: str) -> LogCursor:
    """Parse a cursor that was handed out before. Raises Invalid."""
    parts = _CURSOR.fullmatch(text)
    if parts is None:
        fault = "must be `now`, or the `cursor` of an earlier answer, such as 42-3f9a1c2e"
        raise Invalid([Fault("since", fault)])
    return LogCursor(int(parts[1]), int(parts[2] or 0), parts[3])


@dataclass(frozen=True)
class LogEnds:
    """The two ends of the log of a published name."""

    dataset_uuid: UUID
    hot_uuid: UUID | None
    dataset_version: UUID | None
    start: LogCursor
    """Before the oldest change that is kept."""
    head: LogCursor

    def explain_unusable(self, cursor: LogCursor) -> str | None:
        """Return why the log cannot be read after a cursor. None: it can."""
        if cursor.mark != self.head.mark:
            return (
                "the cursor is of another log: the name belongs to another dataset now, or the "
                "stack was restored from a backup"
            )
        if cursor.number > self.head.number or cursor.hot_number > self.head.hot_number:
            return "the cursor is after the end of the log"
        if cursor.number < self.start.number or cursor.hot_number < self.start.hot_number:
            return "changes after the cursor were deleted after their retention"
        return None


_ENDS = """
SELECT p.dataset_uuid, p.hot_dataset_uuid, l.log_id, d.dataset_version,
       coalesce(c.number, 0) AS number, coalesce(c.deleted_to, 0) AS deleted_to,
       coalesce(h.number, 0) AS hot_number, coalesce(h.deleted_to, 0) AS hot_deleted_to
  FROM delivery_log l CROSS JOIN publications p JOIN datasets d USING (dataset_uuid)
  LEFT JOIN delivery_heads c ON c.dataset_uuid = p.dataset_uuid
  LEFT JOIN delivery_heads h ON h.dataset_uuid = p.hot_dataset_uuid
 WHERE p.dataset_uuid = %(dataset_uuid)s
"""


async def get_ends(conn: Conn, dataset_uuid: UUID) -> LogEnds:
    """Return the ends of the log of a published dataset."""
    (row,) = await fetch_dicts(conn, _ENDS, {"dataset_uuid": dataset_uuid})
    hot = row["hot_dataset_uuid"]
    mark = sha256(f"{row['log_id']}/{dataset_uuid}/{hot}".encode()).hexdigest()[:8]
    return LogEnds(
        dataset_uuid,
        hot,
        row["dataset_version"],
        LogCursor(row["deleted_to"], row["hot_deleted_to"], mark),
        LogCursor(row["number"], row["hot_number"], mark),
    )


# A compaction of the hot table moves its rows to Parquet: readers of the name see the same rows as before.
_READ = """
SELECT delivery_id, dataset_uuid, number, dataset_version, kind, reason, partition_key,
       range_start AS start, range_end AS "end", old_hash, new_hash, row_count, task_id, attempt,
       changed_at
  FROM deliveries
 WHERE dataset_uuid = %(dataset_uuid)s AND number > %(after)s
   AND NOT (kind = 'published' AND rows_from = %(hot_uuid)s::uuid) IS TRUE
 ORDER BY number LIMIT %(limit)s
"""


@dataclass(frozen=True)
class DeliveryPage:
    """Some changes of a log in order, the cursor after them, and whether there are more."""

    items: list[DatasetChange]
    end: LogCursor
    more: bool


async def read(conn: Conn, ends: LogEnds, after: LogCursor, *, limit: int) -> DeliveryPage:
    """Read changes after a cursor, each with the cursor after it."""
    values: dict[str, Any] = {"hot_uuid": ends.hot_uuid, "limit": limit + 1}
    cold = {**values, "dataset_uuid": ends.dataset_uuid, "after": after.number}
    found = await fetch_dicts(conn, _READ, cold)
    hot: list[dict[str, Any]] = []
    if ends.hot_uuid is not None:
        of_table = {**values, "dataset_uuid": ends.hot_uuid, "after": after.hot_number}
        hot = await fetch_dicts(conn, _READ, of_table)
    merged = _merge(found, hot)
    items: list[DatasetChange] = []
    for row in merged[:limit]:
        is_hot = row["dataset_uuid"] == ends.hot_uuid
        after = replace(after, **{"hot_number" if is_hot else "number": row["number"]})
        items.append(DatasetChange.model_validate({**row, "cursor": str(after)}))
    return DeliveryPage(items, after, len(merged) > limit)


def _merge(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Merge two logs by the time of writing. Each log keeps the order of its numbers."""
    merged: list[dict[str, Any]] = []
    one, two = list(first), list(second)
    while one and two:
        earlier = one if one[0]["delivery_id"] < two[0]["delivery_id"] else two
        merged.append(earlier.pop(0))
    return merged + one + two


COLUMNS = (
    *(("dataset", "string"), ("is_table", "boolean"), ("number", "long"), ("kind", "string")),
    *(("reason", "string"), ("partition_key", "string"), ("range_start", "long")),
    *(("range_end", "long"), ("old_hash", "string"), ("new_hash", "string"), ("row_count", "long")),
    *(("dataset_version", "string"), ("task_id", "string"), ("attempt", "int")),
    ("changed_at", "timestamp"),
)
"""Names and types of the columns that queries read."""
_LIST = """
SELECT dataset, coalesce(is_table, false), number, kind, reason, partition_key, range_start, range_end,
       old_hash, new_hash, row_count, dataset_version::text, task_id::text, attempt,
       (extract(epoch FROM changed_at) * 1000000)::bigint
  FROM dataset_changes WHERE org_id = %(org_id)s AND dataset = ANY(%(datasets)s)
 ORDER BY dataset, is_table, number LIMIT %(limit)s
"""


@dataclass(frozen=True)
class ListedChanges:
    """Changes of several datasets, and the id of the log that numbered them."""

    log_id: UUID
    rows: list[list[Any]]
    """Values of `COLUMNS`; times are microseconds since 1970."""


async def list_changes(
    conn: Conn, org_id: UUID, datasets: Sequence[str], *, limit: int
) -> ListedChanges:
    """List the numbered changes of published datasets."""
    values = {"org_id": org_id, "datasets": list(datasets), "limit": limit}
    [(log_id,)] = await (await conn.execute("SELECT log_id FROM delivery_log")).fetchall()
    rows = await (await conn.execute(_LIST, values)).fetchall()
    return ListedChanges(log_id, [list(row) for row in rows])


# Rows are written in about the order of their time. A log is deleted from its start, without gaps.
_DELETE_OLD = """
WITH old AS (
    SELECT dataset_uuid, max(number) AS last
      FROM (SELECT dataset_uuid, number, changed_at FROM deliveries
             ORDER BY delivery_id LIMIT %(limit)s) d
     WHERE number IS NOT NULL AND changed_at < now() - %(older_than)s
     GROUP BY dataset_uuid
), moved AS (
    UPDATE delivery_heads h SET deleted_to = old.last
      FROM old WHERE h.dataset_uuid = old.dataset_uuid AND h.deleted_to < old.last
)
DELETE FROM deliveries d USING old WHERE d.dataset_uuid = old.dataset_uuid AND d.number <= old.last
"""


async def delete_old(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete changes after their retention. Returns the number of rows."""
    return (await conn.execute(_DELETE_OLD, {"older_than": older_than, "limit": limit})).rowcount


_SET_REASON = "SELECT set_config('trace.delivery_reason', %(reason)s, true)"


async def set_reason(conn: Conn, reason: str) -> None:
    """Name the reason of the generations that this transaction makes visible. The default is `deploy`."""
    await conn.execute(_SET_REASON, {"reason": reason})
