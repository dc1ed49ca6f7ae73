"""Users and roles."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import StringConstraints

from trace_etl.api.body import ListReply, Reply, UserRequest
from trace_etl.model.roles import Role

UserName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.@-]{0,127}$")]


class NewUser(UserRequest):
    name: UserName
    role: Role


class NewRole(UserRequest):
    role: Role


class UserItem(Reply):
    name: str
    role: Role
    added_at: datetime
    disabled_at: datetime | None


class UserList(ListReply[UserItem]):
    """One page of users."""


class Me(Reply):
    """The caller of this request."""

    name: str
    org_id: UUID
    role: Role
