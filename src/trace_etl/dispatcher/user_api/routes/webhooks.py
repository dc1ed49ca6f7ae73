"""Deliveries of webhooks: signed with the source's secret, instead of a bearer token."""

import hashlib
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request

from trace_etl.api.body import Name
from trace_etl.api.user.webhooks import DeliveryReply
from trace_etl.dispatcher.user_api.context import ContextDep
from trace_etl.dispatcher.user_api.webhook_signatures import Signature
from trace_etl.model.errors import Fault, Invalid, TooLarge
from trace_etl.policy.webhook_scope import DEFAULT_SCOPE, find_scope
from trace_etl.state.db.pool import transaction
from trace_etl.state.routing import webhooks

router = APIRouter(prefix="/v1", tags=["webhooks"])
MAX_BYTES = 64 * 1024
_LARGEST = 1024 * 1024
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}
}


@router.post("/webhooks/{dag}/{job}", openapi_extra=_BODY)
async def deliver(
    dag: Name,
    job: Name,
    request: Request,
    ctx: ContextDep,
    x_trace_timestamp: Annotated[str, Header(max_length=20)] = "",
    x_trace_delivery: Annotated[str, Header(max_length=128)] = "",
    x_trace_signature: Annotated[str, Header(max_length=128)] = "",
    org: Annotated[
        Name | None, Query(description="Name or id; the local one if not given.")
    ] = None,
) -> DeliveryReply:
    """Emit a webhook source's event for what the body says, once per delivery id."""
    async with ctx.pool.connection() as conn:
        to = await webhooks.source(conn, org or str(ctx.webhooks.org_id), dag, job)
    options = to.options if to else {}
    body = await _body(request, options.get("max_bytes", MAX_BYTES) if to else _LARGEST)
    signature = Signature(x_trace_timestamp, x_trace_delivery, x_trace_signature)
    secrets = ctx.webhooks.of(options["secret"] if to else None)
    signature.verify(body, secrets, window=ctx.webhooks.window)
    assert to is not None  # no secret of nobody's verifies
    scope = find_scope(_parsed(body), options.get("scope", DEFAULT_SCOPE))
    if not x_trace_delivery.isascii() or not x_trace_delivery.isprintable() or not x_trace_delivery:
        raise Invalid([Fault("X-Trace-Delivery", "is required: an id of your own, ASCII")])
    async with transaction(ctx.pool) as conn:
        event_id, created = await webhooks.deliver(
            conn, to, x_trace_delivery, scope, hashlib.sha256(body).digest()
        )
    ctx.wake.outbox.set()
    return DeliveryReply(
        event_id=event_id,
        delivery_id=x_trace_delivery,
        partition_key=scope.span.key if scope.span else None,
        cursor=scope.cursor,
        created=created,
        deferred_by=to.deferred_by,
    )


async def _body(request: Request, most: int) -> bytes:
    """The body as it was signed. Raises TooLarge without reading more than allowed."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise TooLarge(f"a delivery to this source may have {most} bytes at most")
    return body


def _parsed(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Invalid([Fault("body", f"is not JSON: {error}")]) from error
