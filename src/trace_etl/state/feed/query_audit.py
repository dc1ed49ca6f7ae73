"""The record of all queries: their callers and the datasets that they read, never their text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from trace_etl.api.user.audit import AuditItem
from trace_etl.state.db.pool import Conn, rows_as_json
from trace_etl.state.db.rows import NewestFirstKey, fetch_all, newest_first_values


@dataclass
class AuditRow:
    """One query: its caller, its result and what it read. The last fields are set while it runs."""

    org_id: UUID
    user_name: str | None = None
    task_id: UUID | None = None
    attempt: int | None = None
    query_id: UUID = field(default_factory=uuid4)
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    outcome: str = "ok"
    datasets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    row_count: int = 0
    byte_count: int = 0
    elapsed_ms: float = 0.0


# The role of the Query Service may only insert, so nothing is returned.
_INSERT = """
INSERT INTO query_audit (query_id, asked_at, org_id, user_name, task_id, attempt, outcome, datasets,
                         row_count, byte_count, elapsed_ms)
SELECT query_id, asked_at, org_id, user_name, task_id, attempt, outcome, datasets, row_count,
       byte_count, elapsed_ms
  FROM json_to_recordset(%(rows)s::json) AS r (
       query_id uuid, asked_at timestamptz, org_id uuid, user_name text, task_id uuid,
       attempt integer, outcome text, datasets jsonb, row_count bigint, byte_count bigint,
       elapsed_ms double precision)
ON CONFLICT DO NOTHING  -- a repeated attempt to record the same queries
"""


async def record(conn: Conn, rows: Sequence[AuditRow]) -> None:
    """Record queries, on a connection that may write."""
    await conn.rows(_INSERT, {"rows": rows_as_json([vars(row) for row in rows])}, tuple)


@dataclass(frozen=True)
class AuditFilter:
    user: str | None = None
    task_id: UUID | None = None
    dataset: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None


_LIST = """
SELECT query_id, asked_at, user_name AS "user", task_id, attempt, outcome, datasets, row_count,
       byte_count, elapsed_ms
  FROM query_audit
 WHERE org_id = %(org_id)s
   AND (%(user)s::text IS NULL OR user_name = %(user)s)
   AND (%(task_id)s::uuid IS NULL OR task_id = %(task_id)s)
   AND (%(dataset)s::text IS NULL
        OR datasets @> jsonb_build_array(jsonb_build_object('dataset', %(dataset)s::text)))
   AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)
   AND asked_at >= coalesce(%(since)s::timestamptz, '-infinity')
   AND asked_at < coalesce(%(until)s::timestamptz, 'infinity')
   AND (%(before)s::timestamptz IS NULL OR (asked_at, query_id) < (%(before)s, %(before_id)s::uuid))
 ORDER BY asked_at DESC, query_id DESC LIMIT %(limit)s
"""


async def list_queries(
    conn: Conn,
    org_id: UUID,
    filters: AuditFilter,
    *,
    after: NewestFirstKey | None,
    limit: int,
) -> list[AuditItem]:
    """List one page of an organisation's queries, newest first."""
    return await fetch_all(
        conn, AuditItem, _LIST, newest_first_values(org_id, filters, after, limit)
    )


_DELETE_OLD = """
DELETE FROM query_audit WHERE query_id IN (
    SELECT query_id FROM query_audit WHERE asked_at < now() - %(older_than)s::interval
     ORDER BY asked_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def delete_old(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete a bounded number of the oldest rows. Returns how many were deleted."""
    return (await conn.execute(_DELETE_OLD, {"older_than": older_than, "limit": limit})).rowcount
