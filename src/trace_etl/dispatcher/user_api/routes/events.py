"""Triggers, and the events that they and tasks emit."""

from dataclasses import asdict
from uuid import UUID

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import events as wire
from trace_etl.api.user import triggers
from trace_etl.api.user.jobs import SourceKind
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep, newest
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import transaction
from trace_etl.state.feed import event_log
from trace_etl.state.feed.event_log import EventFilter
from trace_etl.state.routing import events

router = APIRouter(prefix="/v1", tags=["events"])


@router.get("/events")
async def list_events(
    caller: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    job: Name | None = None,
    dataset: Name | None = None,
    routed: bool | None = None,
) -> wire.EventList:
    """What happened to datasets, newest first. `dag` and `job` are the producer's."""
    which = EventFilter(dag, job, dataset, routed)
    async with ctx.pool.connection() as conn:
        found = await event_log.listing(
            conn, caller.org_id, which, after=newest(page), limit=page.fetch
        )
    items, following = page.cut(found, lambda view: (view.accepted_at, view.event_id))
    return wire.EventList(
        items=[wire.EventItem.model_validate(asdict(view)) for view in items], next=following
    )


@router.get("/events/{event_id}")
async def get_event(event_id: UUID, caller: CallerDep, ctx: ContextDep) -> wire.EventItem:
    """One event."""
    async with ctx.pool.connection() as conn:
        view = await event_log.get(conn, caller.org_id, event_id)
    return wire.EventItem.model_validate(asdict(view))


@router.get("/triggers")
async def list_triggers(
    caller: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dag: Name | None = None,
    job: Name | None = None,
    source_kind: SourceKind | None = None,
) -> triggers.TriggerList:
    """What people, clocks and webhooks asked sources for, newest first."""
    async with ctx.pool.connection() as conn:
        found = await event_log.triggers(
            conn,
            caller.org_id,
            dag=dag,
            job=job,
            source_kind=source_kind,
            after=newest(page),
            limit=page.fetch,
        )
    items, following = page.cut(found, lambda view: (view.triggered_at, view.event_id))
    return triggers.TriggerList(
        items=[triggers.TriggerItem.model_validate(asdict(view)) for view in items], next=following
    )


@router.post("/triggers")
async def trigger(
    body: triggers.TriggerRequest, caller: CallerDep, ctx: ContextDep
) -> triggers.TriggerReply:
    """Emit a source's event for a block range, once."""
    span = Range.checked(body.start, body.end)
    async with transaction(ctx.pool) as conn:
        done = await events.trigger(conn, caller.org_id, body.dag, body.job, span)
    ctx.wake.outbox.set()
    return triggers.TriggerReply(
        event_id=done.event_id,
        dag=body.dag,
        job=body.job,
        partition_key=span.key,
        created=done.created,
        deferred_by=done.deferred_by,
    )
