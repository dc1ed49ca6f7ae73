"""Dependencies of the user API's handlers: shared resources and the caller."""

from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query

from trace_etl.dispatcher.loops.storage_sweeper import StorageSweeper
from trace_etl.dispatcher.user_api.change_feed import ChangeFeed
from trace_etl.dispatcher.user_api.deploy_runner import DeployRunner
from trace_etl.dispatcher.user_api.roles import ROLES, SERVICES, require_role
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.http.user_tokens import UserDep
from trace_etl.model.errors import Fault, Forbidden, Invalid
from trace_etl.queues.queue import QueueProducer
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import Pool


@dataclass(frozen=True)
class Context:
    pool: Pool
    queue: QueueProducer
    wake: WakeEvents
    changes: ChangeFeed
    webhooks: WebhookSecrets
    deploys: DeployRunner
    sweeper: StorageSweeper
    sweeps_storage: bool
    """Whether the loop of the sweeper runs."""
    scrapes: dict[UUID, tuple[float, bytes]] = field(
        default_factory=dict[UUID, tuple[float, bytes]]
    )
    """The last metrics response of each org, and its time."""


@dataclass(frozen=True)
class Caller:
    """An authenticated user, with their role in the token's org."""

    org_id: UUID
    name: str
    role: str


def _context(request: Request) -> Context:
    return request.app.state.context


async def _caller(request: Request, user: UserDep) -> Caller:
    """Return the caller, if their role allows this route (see `roles.ROLES`). Raises Forbidden."""
    context = _context(request)
    role = SERVICES.get(user.name)
    if role is None:
        async with context.pool.connection() as conn:
            role = await users.get_role(conn, user.org_id, user.name)
    if role is None:
        raise Forbidden(f"user {user.name!r} is unknown or disabled")
    path: str = request.scope["route"].path_format
    require_role(ROLES[f"{request.method} {path}"], role)
    if request.query_params:
        _check_parameters(request)
    return Caller(user.org_id, user.name, role)


def _check_parameters(request: Request) -> None:
    """Refuse unknown parameters: a misspelt filter would match everything. Raises Invalid."""
    fields = get_flat_params(request.scope["route"].dependant)
    known = {field.alias for field in fields if isinstance(field.field_info, Query)}
    if unknown := sorted(set(request.query_params) - known):
        message = f"unknown parameter; known parameters: {', '.join(sorted(known)) or 'none'}"
        raise Invalid([Fault(name, message) for name in unknown])


ContextDep = Annotated[Context, Depends(_context)]
CallerDep = Annotated[Caller, Depends(_caller)]
