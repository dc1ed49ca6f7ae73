"""Roles of users. Each role includes the rights of those before it."""

from collections.abc import Collection
from typing import Literal

Role = Literal["reader", "writer", "admin"]
READER, WRITER, ADMIN = "reader", "writer", "admin"
ROLES = (READER, WRITER, ADMIN)


def includes_rights(role: str, required: str) -> bool:
    """Return whether a role has the rights of the required one."""
    return ROLES.index(role) >= ROLES.index(required)


def may_read(role: str, read_roles: Collection[str] | None) -> bool:
    """Return whether a role may read a dataset with these `read_roles`."""
    return read_roles is None or any(includes_rights(role, required) for required in read_roles)
