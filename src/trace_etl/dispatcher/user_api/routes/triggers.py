"""Triggers of sources."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from trace_etl.api.user.triggers import TriggerList, TriggerReply, TriggerRequest
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import transaction
from trace_etl.state.feed import event_log
from trace_etl.state.feed.event_log import TriggerFilter
from trace_etl.state.routing import events

router = APIRouter(prefix="/v1", tags=["events"])


@router.get("/triggers")
async def list_triggers(
    listing: ListingDep, filters: Annotated[TriggerFilter, Depends()]
) -> TriggerList:
    """List the triggers of sources by users, schedules and webhooks, newest first."""
    rows = await listing.fetch(event_log.list_triggers, filters, datetime, UUID)
    return listing.reply(
        TriggerList, rows, lambda trigger: (trigger.triggered_at, trigger.event_id)
    )


@router.post("/triggers")
async def trigger(body: TriggerRequest, user: CallerDep, ctx: ContextDep) -> TriggerReply:
    """Emit a source's event for a block range, once."""
    span = Range.checked(body.start, body.end)
    async with transaction(ctx.pool) as conn:
        result = await events.trigger(conn, user.org_id, body.dag, body.job, span)
    ctx.wake.outbox.set()
    return TriggerReply(
        event_id=result.event_id,
        dag=body.dag,
        job=body.job,
        partition_key=span.key,
        created=result.created,
        deferred_by=result.deferred_by,
    )
