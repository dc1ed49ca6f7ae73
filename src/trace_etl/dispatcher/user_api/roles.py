"""Which role each route of the user API asks for: this table, and nothing else.

A new route: add its line here and take `CallerDep` in the handler. A route without a line does not
start. `admin` may do all that `writer` may, who may do all that `reader` may.
"""

from collections.abc import Iterable, Mapping

from fastapi import APIRouter
from fastapi.routing import APIRoute

from trace_etl.model.errors import Forbidden

READER, WRITER, ADMIN = "reader", "writer", "admin"
SIGNED = "signed"
"""No bearer token: the body is signed with a source's own secret."""
_RANK = {READER: 0, WRITER: 1, ADMIN: 2}

ROLES: Mapping[str, str] = {
    "GET /v1/dags": READER,
    "GET /v1/dags/{name}": READER,
    "POST /v1/dags": WRITER,
    "POST /v1/plans": READER,
    "GET /v1/dags/{name}/rollout": READER,
    "POST /v1/dags/{name}/rollback": WRITER,
    "POST /v1/dags/{name}/promote": WRITER,
    "GET /v1/jobs": READER,
    "GET /v1/jobs/{dag}/{job}": READER,
    "GET /v1/events": READER,
    "GET /v1/events/{event_id}": READER,
    "GET /v1/triggers": READER,
    "POST /v1/triggers": WRITER,
    "GET /v1/tasks": READER,
    "GET /v1/tasks/summary": READER,
    "GET /v1/tasks/{task_id}": READER,
    "POST /v1/tasks/{task_id}/cancel": WRITER,
    "GET /v1/datasets": READER,
    "GET /v1/datasets/{name}": READER,
    "GET /v1/datasets/{name}/batches": READER,
    "POST /v1/batches/{publish_id}/retry": WRITER,
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
    "GET /v1/outbox": READER,
    "POST /v1/outbox/replay": WRITER,
    "GET /v1/changes": READER,
    "POST /v1/webhooks/{dag}/{job}": SIGNED,
    "GET /metrics": READER,
    "GET /v1/me": READER,
    "GET /v1/users": ADMIN,
    "POST /v1/users": ADMIN,
    "POST /v1/users/{user}/role": ADMIN,
    "POST /v1/users/{user}/disable": ADMIN,
    "POST /v1/users/{user}/enable": ADMIN,
}


def check_declared(routers: Iterable[APIRouter]) -> None:
    """Refuse to start with a route that nobody gave a role, or a line that no route has."""
    served = {label for router in routers for label in labels(router)}
    if served != set(ROLES):
        wrong = ", ".join(sorted(served ^ set(ROLES)))
        raise ValueError(f"dispatcher/routes/roles.py and the routes do not agree on: {wrong}")


def labels(router: APIRouter) -> list[str]:
    """`GET /v1/tasks/{task_id}` and the like, for each route of a router."""
    return [
        f"{method} {route.path_format}"
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    ]


def require(needed: str, role: str) -> None:
    """Raise Forbidden unless a role may do what the needed one may."""
    if _RANK[role] < _RANK[needed]:
        raise Forbidden(f"this needs the role {needed}; yours is {role}")
