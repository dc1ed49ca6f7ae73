"""Users of an org and their roles."""

from uuid import UUID

from psycopg.errors import UniqueViolation

from trace_etl.api.user.users import UserItem
from trace_etl.model.errors import Conflict, NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one

_ROLE = """
SELECT role FROM memberships
 WHERE org_id = %(org_id)s AND user_name = %(name)s AND disabled_at IS NULL
"""


async def get_role(conn: Conn, org_id: UUID, name: str) -> str | None:
    """Return a user's role in an org, or None for a user who is unknown or disabled."""
    row = await (await conn.execute(_ROLE, {"org_id": org_id, "name": name})).fetchone()
    return row[0] if row else None


_LIST = """
SELECT user_name AS name, role, added_at, disabled_at FROM memberships
 WHERE org_id = %(org_id)s AND user_name > %(after)s
   AND (%(role)s::text IS NULL OR role = %(role)s)
 ORDER BY user_name LIMIT %(limit)s
"""


async def list_users(
    conn: Conn, org_id: UUID, *, role: str | None, after: str, limit: int
) -> list[UserItem]:
    """List one page of an org's users by name."""
    values = {"org_id": org_id, "role": role, "after": after, "limit": limit}
    return await fetch_all(conn, UserItem, _LIST, values)


_INSERT_USER = "INSERT INTO users (name) VALUES (%(name)s) ON CONFLICT DO NOTHING"
_INSERT_MEMBERSHIP = """
INSERT INTO memberships (org_id, user_name, role) VALUES (%(org_id)s, %(name)s, %(role)s)
RETURNING user_name AS name, role, added_at, disabled_at
"""


async def add_user(conn: Conn, org_id: UUID, name: str, role: str) -> UserItem:
    """Add a user to an org. Raises Conflict if the user is already a member."""
    await conn.execute(_INSERT_USER, {"name": name})
    try:
        values = {"org_id": org_id, "name": name, "role": role}
        added = await fetch_one(conn, UserItem, _INSERT_MEMBERSHIP, values)
    except UniqueViolation as error:
        raise Conflict(f"user {name!r} already exists; change the role instead") from error
    assert added is not None
    return added


# The lock serialises two admins that disable each other, so one admin always remains.
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


async def change_user(
    conn: Conn, org_id: UUID, name: str, *, role: str | None = None, disabled: bool | None = None
) -> UserItem:
    """Change the role of a user, or disable or enable the user. Raises NotFound, Conflict."""
    rows = await (await conn.execute(_ADMINS, {"org_id": org_id})).fetchall()
    loses_admin = disabled is True or (role is not None and role != "admin")
    if loses_admin and [row[0] for row in rows] == [name]:
        raise Conflict(f"{name!r} is the last admin; make another user an admin first")
    values = {"org_id": org_id, "name": name, "role": role, "disabled": disabled}
    user = await fetch_one(conn, UserItem, _CHANGE, values)
    if user is None:
        raise NotFound(f"no user {name!r}; `trace users list` lists them")
    return user
