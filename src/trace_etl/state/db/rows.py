"""Run a query and build one object from each row, by column name."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg.rows import class_row, dict_row

from trace_etl.api.body import Name
from trace_etl.state.db.pool import Conn

T = TypeVar("T")
NewestFirstKey = tuple[datetime, UUID]
"""Time and id of the last row of a page, in a list sorted newest first."""


@dataclass(frozen=True)
class JobNameFilter:
    """Which rows to list. None matches every row."""

    dag: Name | None = None
    job: Name | None = None


async def fetch_all(
    conn: Conn, kind: type[T], query: LiteralString, values: Mapping[str, Any] | None = None
) -> list[T]:
    """Return every row as an object of the given class."""
    async with conn.cursor(row_factory=class_row(kind)) as cursor:
        await cursor.execute(query, values)
        return await cursor.fetchall()


async def fetch_one(
    conn: Conn, kind: type[T], query: LiteralString, values: Mapping[str, Any] | None = None
) -> T | None:
    """Return the first row as an object of the given class, or None if there is no row."""
    async with conn.cursor(row_factory=class_row(kind)) as cursor:
        await cursor.execute(query, values)
        return await cursor.fetchone()


async def fetch_dicts(
    conn: Conn, query: LiteralString, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return every row as a dict by column name."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query, values)
        return await cursor.fetchall()


def newest_first_values(
    org_id: UUID, filters: object, after: NewestFirstKey | None, limit: int
) -> dict[str, object]:
    """Return the query parameters of one page of a filtered list, sorted newest first."""
    return {"org_id": org_id, **vars(filters), **page_start_values(after), "limit": limit}


def page_start_values(after: NewestFirstKey | None) -> dict[str, object]:
    """Return the query parameters that start a page after a row, in a list sorted newest first."""
    moment, row_id = after or (None, None)
    return {"before": moment, "before_id": row_id}
