"""The role that each route of the user API requires.

To add a route, add it to this table and take `CallerDep` or `ListingDep` in the handler. The Dispatcher
does not start if a route is missing here. `admin` includes the rights of `writer`, and `writer` those of
`reader`.
"""

from collections.abc import Iterable, Mapping

from fastapi import APIRouter
from fastapi.routing import APIRoute

from trace_etl.model.errors import Forbidden
from trace_etl.model.roles import ADMIN, READER, WRITER, includes_rights

SIGNED = "signed"
"""No bearer token: the request is signed with the secret of a webhook source."""
SERVICES: Mapping[str, frozenset[str]] = {
    "scheduler": frozenset(
        {"GET /v1/schedules", "GET /v1/schedules/{dag}/{job}/last-tick", "POST /v1/triggers"}
    )
}
"""The routes that each service of the stack needs. Services are not users, so no admin can disable them."""

ROLES: Mapping[str, str] = {
    "GET /v1/dags": READER,
    "GET /v1/dags/{name}": READER,
    "POST /v1/dags": WRITER,
    "POST /v1/plans": READER,
    "GET /v1/dags/{name}/graph": READER,
    "GET /v1/dags/{name}/versions": READER,
    "GET /v1/dags/{name}/versions/{dag_version}": READER,
    "GET /v1/dags/{name}/rollout": READER,
    "POST /v1/dags/{name}/rollback": WRITER,
    "POST /v1/dags/{name}/promote": WRITER,
    "POST /v1/dags/{name}/remove": WRITER,
    "GET /v1/runtimes": READER,
    "GET /v1/jobs": READER,
    "GET /v1/jobs/{dag}/{job}": READER,
    "GET /v1/schedules": READER,
    "GET /v1/schedules/{dag}/{job}/last-tick": READER,
    "GET /v1/ids/{kind}/{prefix}": READER,
    "GET /v1/events": READER,
    "GET /v1/events/{event_id}": READER,
    "GET /v1/triggers": READER,
    "POST /v1/triggers": WRITER,
    "POST /v1/progress": READER,
    "GET /v1/overview": READER,
    "GET /v1/failures": READER,
    "GET /v1/tasks": READER,
    "GET /v1/tasks/summary": READER,
    "GET /v1/tasks/{task_id}": READER,
    "GET /v1/tasks/{task_id}/logs": READER,
    "POST /v1/tasks/{task_id}/cancel": WRITER,
    "POST /v1/tasks/cancel": WRITER,
    "POST /v1/tasks/retry": WRITER,
    "GET /v1/datasets": READER,
    "GET /v1/datasets/{name}": READER,
    "GET /v1/datasets/{name}/outline": READER,
    "GET /v1/datasets/{name}/certificates": READER,
    "GET /v1/datasets/{name}/changes": READER,
    "GET /v1/datasets/{name}/manifest": READER,
    "GET /v1/datasets/{name}/map": READER,
    "GET /v1/certificate-keys": READER,
    "GET /v1/datasets/{name}/batches": READER,
    "GET /v1/batches": READER,
    "GET /v1/batches/{publish_id}": READER,
    "POST /v1/batches/{publish_id}/retry": WRITER,
    "POST /v1/batches/{publish_id}/drop": WRITER,
    "GET /v1/checks": READER,
    "POST /v1/checks/accept": WRITER,
    "GET /v1/pressure": READER,
    "GET /v1/pauses": READER,
    "POST /v1/pauses": WRITER,
    "POST /v1/pauses/resume": WRITER,
    "GET /v1/backfills": READER,
    "POST /v1/backfills": WRITER,
    "POST /v1/backfills/preview": READER,
    "GET /v1/backfills/{backfill_id}": READER,
    "GET /v1/backfills/{backfill_id}/chunks": READER,
    "POST /v1/backfills/{backfill_id}/cancel": WRITER,
    "POST /v1/backfills/{backfill_id}/resume": WRITER,
    "GET /v1/datasets/{name}/lineage": READER,
    "GET /v1/datasets/{name}/lineage/{partition_key}": READER,
    "POST /v1/datasets/{name}/invalidations": WRITER,
    "GET /v1/invalidations": READER,
    "GET /v1/notifications": READER,
    "GET /v1/outbox": READER,
    "POST /v1/outbox/replay": WRITER,
    "GET /v1/storage": READER,
    "GET /v1/storage/unused": READER,
    "POST /v1/storage/sweep": ADMIN,
    "GET /v1/udf/bundles": READER,
    "POST /v1/udf/uploads": WRITER,
    "PUT /v1/udf/uploads/{upload_id}/parts/{number}": WRITER,
    "POST /v1/udf/uploads/{upload_id}/finalize": WRITER,
    "GET /v1/changes": READER,
    "POST /v1/webhooks/{dag}/{job}": SIGNED,
    "GET /metrics": READER,
    "GET /v1/me": READER,
    "GET /v1/audit": ADMIN,
    "GET /v1/users": ADMIN,
    "POST /v1/users": ADMIN,
    "POST /v1/users/{user}/role": ADMIN,
    "POST /v1/users/{user}/disable": ADMIN,
    "POST /v1/users/{user}/enable": ADMIN,
}


def check_declared(routers: Iterable[APIRouter]) -> None:
    """Check that the table and the routes match. Raises ValueError."""
    served = {label for router in routers for label in labels(router)}
    if served != set(ROLES):
        wrong = ", ".join(sorted(served ^ set(ROLES)))
        raise ValueError(f"user_api/roles.py does not match the routes; add or remove: {wrong}")


def labels(router: APIRouter) -> list[str]:
    """Return a label such as `GET /v1/tasks/{task_id}` for each route of a router."""
    return [
        f"{method} {route.path_format}"
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    ]


def require_service_route(service: str, label: str) -> None:
    """Check that a service may call a route. Raises Forbidden."""
    if label not in SERVICES.get(service, ()):
        raise Forbidden(f"the service {service} may not call {label}")


def require_role(required: str, role: str) -> None:
    """Check that a role includes the required one. Raises Forbidden."""
    if not includes_rights(role, required):
        raise Forbidden(f"this call requires the role {required}; your role is {role}")
