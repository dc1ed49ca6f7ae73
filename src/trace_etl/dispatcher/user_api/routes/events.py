"""Events of datasets."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from trace_etl.api.user.events import EventItem, EventList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.state.feed import event_log
from trace_etl.state.feed.event_log import EventFilter

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
