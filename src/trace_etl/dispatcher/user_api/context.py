"""Dependencies of the user API's handlers: shared resources and the caller."""

from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query

from trace_etl.api.user.views.overview import Overview
from trace_etl.dag.runtimes import Runtimes
from trace_etl.dispatcher.loops.storage_sweeper import StorageSweeper
from trace_etl.dispatcher.task_api.authorization.tokens import Signer
from trace_etl.dispatcher.user_api.change_feed import ChangeFeed
from trace_etl.dispatcher.user_api.deploy_runner import DeployRunner
from trace_etl.dispatcher.user_api.roles import ROLES, require_role, require_service_route
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.http.fair_slots import FairSlots, SlotNames
from trace_etl.http.user_tokens import ServiceKeys, bearer_token, current_user
from trace_etl.model.errors import Fault, Forbidden, Invalid
from trace_etl.model.roles import READER
from trace_etl.objects.store import ObjectStore
from trace_etl.queues.queue import QueueProducer
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import Pool

_BUNDLES = SlotNames("bundles")
_MAX_FAULTS = 20


@dataclass(frozen=True)
class Context:
    pool: Pool
    queue: QueueProducer
    wake: WakeEvents
    changes: ChangeFeed
    webhooks: WebhookSecrets
    deploys: DeployRunner
    sweeper: StorageSweeper
    manifest_signer: Signer | None
    """Signs manifests. None: no key is configured."""
    sweeps_storage: bool
    """Whether the loop of the sweeper runs."""
    objects: ObjectStore
    runtimes: Runtimes
    bundle_checks: FairSlots = field(default_factory=lambda: FairSlots(2, 1, 4, _BUNDLES))
    """Two bundles are checked at once, one per user. Each is held in memory, up to 50 MiB."""
    scrapes: dict[UUID, tuple[float, bytes]] = field(
        default_factory=dict[UUID, tuple[float, bytes]]
    )
    """The last metrics response of each org, and its time."""
    overviews: dict[UUID, tuple[float, Overview]] = field(
        default_factory=dict[UUID, tuple[float, Overview]]
    )
    """The last overview of each org, and until when it is returned again."""


@dataclass(frozen=True)
class Caller:
    """An authenticated user, with their role in the token's org, or a service."""

    org_id: UUID
    name: str
    role: str
    is_service: bool = False


def _get_context(request: Request) -> Context:
    return request.app.state.context


async def _get_caller(request: Request) -> Caller:
    """Return the caller, if they may call this route (see `roles`). Raises Forbidden."""
    label = f"{request.method} {request.scope['route'].path_format}"
    caller = _find_service(request) or await _find_user(request)
    if caller.is_service:
        require_service_route(caller.name, label)
    else:
        require_role(ROLES[label], caller.role)
    if request.query_params:
        _check_parameters(request)
    return caller


def _find_service(request: Request) -> Caller | None:
    """Return the service whose token the request carries; None if it is not the token of a service."""
    keys: ServiceKeys = request.app.state.service_keys
    token = bearer_token(request)
    if not keys.knows(token):
        return None
    service = keys.verify(token)
    return Caller(service.org_id, service.name, READER, is_service=True)


async def _find_user(request: Request) -> Caller:
    user = await current_user(request)
    async with _get_context(request).pool.connection() as conn:
        role = await users.get_role(conn, user.org_id, user.name)
    if role is None:
        raise Forbidden(f"user {user.name!r} is unknown or disabled; ask an admin")
    return Caller(user.org_id, user.name, role)


def _check_parameters(request: Request) -> None:
    """Refuse unknown parameters: a misspelt filter would match everything. Raises Invalid."""
    fields = get_flat_params(request.scope["route"].dependant)
    known = {field.alias for field in fields if isinstance(field.field_info, Query)}
    if unknown := sorted(set(request.query_params) - known):
        message = f"unknown parameter; known parameters: {', '.join(sorted(known)) or 'none'}"
        raise Invalid([Fault(name, message) for name in unknown[:_MAX_FAULTS]])


ContextDep = Annotated[Context, Depends(_get_context)]
CallerDep = Annotated[Caller, Depends(_get_caller)]
