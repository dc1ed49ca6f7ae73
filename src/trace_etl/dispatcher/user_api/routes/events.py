"""Events of datasets, and the triggers of sources."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from trace_etl.api.user.events import EventItem, EventList
from trace_etl.api.user.triggers import (
    CausedWork,
    ProgressRequest,
    TriggerList,
    TriggerReply,
    TriggerRequest,
)
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import transaction
from trace_etl.state.feed import event_log
from trace_etl.state.feed.event_log import EventFilter, TriggerFilter
from trace_etl.state.routing import caused_work, triggers

router = APIRouter(prefix="/v1", tags=["events"])


@router.get("/events")
async def list_events(listing: ListingDep, filters: Annotated[EventFilter, Depends()]) -> EventList:
    """List events of datasets, newest first. `dag` and `job` name the producer."""
    rows = await listing.fetch(event_log.list_events, filters, datetime, UUID)
    return listing.reply(EventList, rows, lambda event: (event.accepted_at, event.event_id))


@router.get("/events/{event_id}")
async def get_event(event_id: UUID, user: CallerDep, ctx: ContextDep) -> EventItem:
    """Show one event."""
    async with ctx.pool.connection() as conn:
        return await event_log.get_event(conn, user.org_id, event_id)


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
    """Emit a source's events for a scope, each block and key once; retry what failed of it before."""
    span = None
    if body.start is not None and body.end is not None:
        span = Range.checked(body.start, body.end)
    scope = triggers.TriggerScope(
        span, body.cursor, body.partition_key, body.scheduled_time, body.payload
    )
    # The scheduler delivers ticks of cron sources and nothing else.
    kinds = ("cron",) if user.is_service else ("manual", "cron")
    async with transaction(ctx.pool) as conn:
        reply = await triggers.trigger(conn, user.org_id, body.dag, body.job, scope, kinds=kinds)
    ctx.wake.outbox.set()
    ctx.wake.retries.set()
    ctx.wake.backfills.set()  # failed backfills of retried tasks run again
    return reply


@router.post("/progress")
async def read_progress(body: ProgressRequest, user: CallerDep, ctx: ContextDep) -> CausedWork:
    """Count the tasks and events of a DAG that a trigger or a deploy caused."""
    async with ctx.pool.connection() as conn:
        if body.rollout_id is not None:
            return await caused_work.read_initial_progress(
                conn, user.org_id, body.dag, body.rollout_id
            )
        return await caused_work.read_progress(
            conn, user.org_id, body.dag, body.event_ids, body.task_ids
        )
