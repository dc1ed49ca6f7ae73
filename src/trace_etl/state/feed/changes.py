"""Read the change stream, in the order of transaction ids.

A transaction gets its id when it starts writing, not when it commits. Only changes below the oldest
running transaction are read, because no new change can appear there.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_FIRST = UUID(int=0)
_LAST = UUID(int=2**128 - 1)
_SOURCES = 3


@dataclass(frozen=True, order=True)
class ChangePosition:
    """A position in the stream. Everything up to and including it was read."""

    xid: int
    source: int = _SOURCES
    key: UUID = _LAST
    subkey: str = ""

    def within(self, source: int) -> "ChangePosition":
        """Return the same position within the changes of one source."""
        if source == self.source:
            return self
        return ChangePosition(self.xid if source < self.source else self.xid - 1, source, _LAST)


@dataclass(frozen=True)
class Change:
    xid: int
    source: int
    key: UUID
    subkey: str
    kind: str
    dag: str
    job: str | None
    body: dict[str, Any]

    @property
    def position(self) -> ChangePosition:
        return ChangePosition(self.xid, self.source, self.key, self.subkey)


@dataclass(frozen=True)
class ChangePage:
    """One page of the stream, and the position after it."""

    changes: list[Change]
    position: ChangePosition


_HEAD = (
    "SELECT pg_snapshot_xmin(pg_current_snapshot())::text, changed_xid::text FROM change_horizon"
)


async def head(conn: Conn) -> tuple[ChangePosition, int]:
    """Return the end of the stream, and the transaction up to which changes were deleted."""
    row = await (await conn.execute(_HEAD)).fetchone()
    assert row is not None
    return ChangePosition(int(row[0]) - 1), int(row[1])


_READ = """
WITH recorded AS (
    SELECT changed_xid AS xid, 0 AS source, change_id AS key, '' AS subkey, kind, dag, job,
           body || jsonb_build_object('at', changed_at) AS body
      FROM changes
     WHERE org_id = %(org_id)s AND (changed_xid, change_id) > (%(xid_0)s::xid8, %(key_0)s)
       AND changed_xid < %(end)s::xid8
       AND (%(dag)s::text IS NULL OR dag = %(dag)s)
       AND (%(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s))
     ORDER BY changed_xid, change_id LIMIT %(limit)s
), changed_tasks AS (
    SELECT changed_xid AS xid, 1 AS source, task_id AS key, '' AS subkey, 'task' AS kind, dag, job, body
      FROM task_changes
     WHERE org_id = %(org_id)s AND (changed_xid, task_id) > (%(xid_1)s::xid8, %(key_1)s)
       AND changed_xid < %(end)s::xid8
       AND (%(dag)s::text IS NULL OR dag = %(dag)s)
       AND (%(kinds)s::text[] IS NULL OR 'task' = ANY(%(kinds)s))
     ORDER BY changed_xid, task_id LIMIT %(limit)s
), commits AS (
    SELECT p.commit_xid AS xid, 2 AS source, p.dataset_version AS key, p.partition_key AS subkey,
           'dataset' AS kind, v.dag, v.job,
           jsonb_build_object(
               'dataset', v.dataset, 'dataset_uuid', v.dataset_uuid, 'output', v.output_name,
               'dataset_version', p.dataset_version, 'current', v.is_current,
               'partition_key', p.partition_key, 'row_count', p.row_count,
               'byte_count', p.byte_count, 'task_id', p.task_id, 'at', p.committed_at) AS body
      FROM streamed_generations v CROSS JOIN LATERAL (
           SELECT * FROM partitions c
            WHERE c.dataset_version = v.dataset_version AND c.commit_xid >= %(xid_2)s::xid8
              AND (c.commit_xid, c.dataset_version, c.partition_key)
                > (%(xid_2)s::xid8, %(key_2)s, %(subkey_2)s) AND c.commit_xid < %(end)s::xid8
            ORDER BY c.commit_xid, c.partition_key LIMIT %(limit)s) p
     WHERE v.org_id = %(org_id)s
       AND (%(dag)s::text IS NULL OR v.dag = %(dag)s)
       AND (%(kinds)s::text[] IS NULL OR 'dataset' = ANY(%(kinds)s))
     ORDER BY xid, key, subkey LIMIT %(limit)s
), found AS (
    SELECT * FROM recorded UNION ALL SELECT * FROM changed_tasks UNION ALL SELECT * FROM commits
)
SELECT xid::text::bigint AS xid, source, key, subkey, kind, dag, job, body FROM found
 ORDER BY found.xid, source, key, subkey LIMIT %(limit)s
"""


async def read(
    conn: Conn,
    org_id: UUID,
    after: ChangePosition,
    *,
    dag: str | None = None,
    kinds: list[str] | None = None,
    limit: int,
) -> ChangePage:
    """Read the next changes of an org after a position."""
    end, _ = await head(conn)
    values = parameters(org_id, after, end, dag=dag, kinds=kinds, limit=limit)
    changes = await fetch_all(conn, Change, _READ, values)
    # A short page means that no further change below the end matches, so continue at the end.
    return ChangePage(changes, changes[-1].position if len(changes) == limit else max(after, end))


def parameters(
    org_id: UUID,
    after: ChangePosition,
    end: ChangePosition,
    *,
    dag: str | None,
    kinds: list[str] | None,
    limit: int,
) -> dict[str, object]:
    """Return the parameters of the statement, with the position within each source."""
    values: dict[str, object] = {"org_id": org_id, "dag": dag, "kinds": kinds, "limit": limit}
    for source in range(_SOURCES):
        position = after.within(source)
        values |= {f"xid_{source}": str(max(position.xid, 0)), f"key_{source}": position.key}
    return values | {"subkey_2": after.within(2).subkey, "end": str(end.xid + 1)}


_DELETE_OLD = """
DELETE FROM changes WHERE change_id IN (
    SELECT change_id FROM changes WHERE changed_at < now() - %(older_than)s
     ORDER BY changed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def delete_old(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete recorded changes after their retention. Returns the number of rows."""
    return (await conn.execute(_DELETE_OLD, {"older_than": older_than, "limit": limit})).rowcount
