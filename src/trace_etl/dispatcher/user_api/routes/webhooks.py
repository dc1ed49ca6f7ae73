"""Webhook deliveries, authenticated by a signature instead of a bearer token."""

import hashlib
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request

from trace_etl.api.body import Name, find_json_problem
from trace_etl.api.user.triggers import DeliveryReply
from trace_etl.dispatcher.user_api.context import ContextDep
from trace_etl.dispatcher.user_api.webhook_signatures import Signature
from trace_etl.model.errors import Fault, Invalid, TooLarge
from trace_etl.policy.webhook_scope import find_scope
from trace_etl.state.db.pool import transaction
from trace_etl.state.routing import webhooks

router = APIRouter(prefix="/v1", tags=["webhooks"])
MAX_BYTES = 64 * 1024
_MAX_BYTES = 1024 * 1024  # the limit before the source is known
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
        Name | None, Query(description="Name or id of the org. Default: the local org.")
    ] = None,
) -> DeliveryReply:
    """Emit the event of a webhook source for the scope in the body, once per delivery id."""
    # Before the signature is verified, the answer must not show whether the source exists.
    body = await _read_body(request)
    async with ctx.pool.connection() as conn:
        source = await webhooks.find_source(conn, org or str(ctx.webhooks.store.org_id), dag, job)
    target = f"{org or ''}/{dag}/{job}"
    signature = Signature(x_trace_timestamp, x_trace_delivery, target, x_trace_signature)
    signature.verify(body, ctx.webhooks.get_secrets(source), window=ctx.webhooks.window)
    assert source is not None  # the signature of an unknown webhook is never valid
    if len(body) > (max_bytes := source.options.get("max_bytes", MAX_BYTES)):
        raise TooLarge(f"the body exceeds the limit of this source, {max_bytes} bytes; send less")
    payload = _parse(body)
    scope = find_scope(payload, source.options.get("scope"))
    if not x_trace_delivery.isascii() or not x_trace_delivery.isprintable() or not x_trace_delivery:
        raise Invalid(
            [
                Fault(
                    "X-Trace-Delivery",
                    "is required: a unique id of the delivery, in printable ASCII",
                )
            ]
        )
    async with transaction(ctx.pool) as conn:
        delivery = await webhooks.deliver(
            conn, source, x_trace_delivery, scope, hashlib.sha256(body).digest(), payload
        )
    ctx.wake.outbox.set()
    return DeliveryReply(
        event_id=delivery.event_id,
        task_id=delivery.task_id,
        delivery_id=x_trace_delivery,
        partition_key=scope.partition_key(x_trace_delivery),
        cursor=scope.cursor,
        created=delivery.created,
        deferred_by=source.deferred_by,
    )


async def _read_body(request: Request) -> bytes:
    """Read the raw body, which is signed. Raises TooLarge as soon as it exceeds the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise TooLarge(f"the body exceeds {_MAX_BYTES} bytes; send less")
    return bytes(body)


def _parse(body: bytes) -> object:
    try:
        payload: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Invalid([Fault("body", f"is not JSON: {error}; send JSON")]) from error
    if problem := find_json_problem(payload):
        raise Invalid([Fault("body", problem)])
    return payload
