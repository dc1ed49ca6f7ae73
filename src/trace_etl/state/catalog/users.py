"""Who belongs to an org, and with which role."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from trace_etl.model.errors import Conflict, NotFound
from trace_etl.state.db.pool import Conn

_ROLE = """
SELECT role FROM memberships
 WHERE org_id = %(org_id)s AND user_name = %(name)s AND disabled_at IS NULL
"""


async def role_of(conn: Conn, org_id: UUID, name: str) -> str | None:
    """The role a user has in an org now; None: none, or not any more."""
    row = await (await conn.execute(_ROLE, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


@dataclass(frozen=True)
class UserView:
    name: str
    role: str
    added_at: datetime
    disabled_at: datetime | None


_VIEW = "SELECT user_name AS name, role, added_at, disabled_at FROM memberships"
_LIST = (
    _VIEW
    + """
 WHERE org_id = %(org_id)s AND user_name > %(after)s
   AND (%(role)s::text IS NULL OR role = %(role)s)
 ORDER BY user_name LIMIT %(limit)s
"""
)


async def listing(
    conn: Conn, org_id: UUID, *, role: str | None, after: str, limit: int
) -> list[UserView]:
    """An org's users by name, one page."""
    values = {"org_id": org_id, "role": role, "after": after, "limit": limit}
    async with conn.cursor(row_factory=class_row(UserView)) as cursor:
        await cursor.execute(_LIST, values)
        return await cursor.fetchall()


_KNOW = "INSERT INTO users (name) VALUES (%(name)s) ON CONFLICT DO NOTHING"
_ADD = """
INSERT INTO memberships (org_id, user_name, role) VALUES (%(org_id)s, %(name)s, %(role)s)
RETURNING user_name AS name, role, added_at, disabled_at
"""


async def add(conn: Conn, org_id: UUID, name: str, role: str) -> UserView:
    """Let somebody into an org. Raises Conflict for one who is in it."""
    await conn.execute(_KNOW, {"name": name})
    try:
        async with conn.cursor(row_factory=class_row(UserView)) as cursor:
            await cursor.execute(_ADD, {"org_id": org_id, "name": name, "role": role})
            made = await cursor.fetchone()
    except UniqueViolation as error:
        raise Conflict(f"user {name!r} is there already; change the role instead") from error
    assert made is not None
    return made


# The lock makes two admins who remove each other take turns.
_ADMINS = """
SELECT user_name FROM memberships
 WHERE org_id = %(org_id)s AND role = 'admin' AND disabled_at IS NULL
 ORDER BY user_name FOR UPDATE
"""
_CHANGE = """
UPDATE memberships
   SET role = coalesce(%(role)s, role),
       disabled_at = CASE %(disabled)s::boolean
                         WHEN true THEN coalesce(disabled_at, now())
                         WHEN false THEN NULL
                         ELSE disabled_at END
 WHERE org_id = %(org_id)s AND user_name = %(name)s
RETURNING user_name AS name, role, added_at, disabled_at
"""


async def change(
    conn: Conn, org_id: UUID, name: str, *, role: str | None = None, disabled: bool | None = None
) -> UserView:
    """Give another role, disable or enable. Raises NotFound, or Conflict for the last admin."""
    rows = await (await conn.execute(_ADMINS, {"org_id": org_id})).fetchall()
    loses = disabled is True or (role is not None and role != "admin")
    if loses and [row[0] for row in rows] == [name]:
        raise Conflict(f"{name!r} is the last admin; make another one first")
    values = {"org_id": org_id, "name": name, "role": role, "disabled": disabled}
    async with conn.cursor(row_factory=class_row(UserView)) as cursor:
        await cursor.execute(_CHANGE, values)
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"no user {name!r}; `trace users list` lists them")
    return found
