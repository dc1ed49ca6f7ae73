"""Ids by their beginning."""

from fastapi import APIRouter

from trace_etl.api.user.ids import IdKind, IdMatches, IdPrefix
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.catalog import ids

router = APIRouter(prefix="/v1", tags=["ids"])


@router.get("/ids/{kind}/{prefix}")
async def find_ids(kind: IdKind, prefix: IdPrefix, user: CallerDep, ctx: ContextDep) -> IdMatches:
    """List the ids of tasks, backfills or batches that begin with a prefix, five at most."""
    async with ctx.pool.connection() as conn:
        return IdMatches(ids=await ids.find_ids(conn, user.org_id, kind, prefix))
