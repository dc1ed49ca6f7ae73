"""Side effects in the outbox."""

from typing import Annotated

from fastapi import APIRouter, Depends

from trace_etl.api.user.outbox import OutboxList, ReplayReply
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.db.pool import transaction
from trace_etl.state.routing import outbox
from trace_etl.state.routing.outbox import OutboxFilter

router = APIRouter(prefix="/v1", tags=["tasks"])


@router.get("/outbox")
async def list_outbox(
    user: CallerDep, ctx: ContextDep, filters: Annotated[OutboxFilter, Depends()], page: PageDep
) -> OutboxList:
    """List side effects that are pending or failed permanently, oldest first."""
    (after,) = page.after(int) or (-1,)
    async with ctx.pool.connection() as conn:
        rows = await outbox.list_outbox(conn, user.org_id, filters, after=after, limit=page.fetch)
    return page.reply(OutboxList, rows, lambda row: (row.outbox_id,))


@router.post("/outbox/replay")
async def replay_outbox(user: CallerDep, ctx: ContextDep) -> ReplayReply:
    """Retry every side effect that failed permanently."""
    async with transaction(ctx.pool) as conn:
        replayed = await outbox.replay(conn, user.org_id)
    ctx.wake.outbox.set()
    return ReplayReply(replayed=replayed)
