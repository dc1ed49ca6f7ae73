"""The callers of queries, and the datasets that they may read."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from trace_etl.http.user_tokens import User
from trace_etl.query.pins import Pin, pin_datasets, require_role
from trace_etl.query.requests import TableReference
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import StateReader


class QueryAccess(Protocol):
    """The caller of a query: a user, or the attempt of a task."""

    @property
    def slot_key(self) -> str:
        """The name under which the caller's queries share slots."""
        ...

    async def authorize(self, state: StateReader) -> None:
        """Raise Forbidden if the caller may not query at all."""
        ...

    async def pin(self, state: StateReader, tables: list[TableReference]) -> list[Pin]:
        """Authorize the caller and pin the datasets that a query names. Raises Invalid or Forbidden."""
        ...


@dataclass(frozen=True)
class UserAccess:
    """A user of an organisation, who reads its published datasets."""

    org_id: UUID
    name: str

    @property
    def slot_key(self) -> str:
        return f"{self.org_id}/{self.name}"

    async def authorize(self, state: StateReader) -> None:
        role = await state.read(lambda conn: users.get_role(conn, self.org_id, self.name))
        require_role(self.name, role)

    async def pin(self, state: StateReader, tables: list[TableReference]) -> list[Pin]:
        return await pin_datasets(state, self.org_id, self.name, tables)


def make_access(user: User) -> UserAccess:
    """Return the access of a verified user, who may be disabled."""
    return UserAccess(user.org_id, user.name)
