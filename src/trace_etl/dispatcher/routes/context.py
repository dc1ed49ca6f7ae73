"""What the user API's handlers may reach."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from trace_etl.dispatcher.kicks import Kicks
from trace_etl.http.users import User, UserDep
from trace_etl.model.errors import Forbidden
from trace_etl.queues.pgqueue import Producer
from trace_etl.state.pool import Pool

_RANK = {"reader": 0, "writer": 1, "admin": 2}


@dataclass(frozen=True)
class Context:
    pool: Pool
    queue: Producer
    kicks: Kicks


def _context(request: Request) -> Context:
    return request.app.state.context


async def _writer(user: UserDep) -> User:
    """A caller who may change things. Raises Forbidden."""
    if _RANK.get(user.role, -1) < _RANK["writer"]:
        raise Forbidden(f"role {user.role!r} may read, but not change anything")
    return user


async def _reader(user: UserDep) -> User:
    if user.role not in _RANK:
        raise Forbidden(f"role {user.role!r} is not one of reader, writer, admin")
    return user


ContextDep = Annotated[Context, Depends(_context)]
WriterDep = Annotated[User, Depends(_writer)]
ReaderDep = Annotated[User, Depends(_reader)]
