"""The registry of runtimes."""

from fastapi import APIRouter

from trace_etl.api.user.dags.runtimes import RuntimeItem, RuntimeList
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep

router = APIRouter(prefix="/v1", tags=["dags"])


@router.get("/runtimes")
async def list_runtimes(user: CallerDep, ctx: ContextDep) -> RuntimeList:
    """List the runtimes that jobs can use, with their limits and their workers."""
    return RuntimeList(
        items=[await _describe(ctx, name) for name in ctx.runtimes.entries], next=None
    )


async def _describe(ctx: Context, name: str) -> RuntimeItem:
    entry, queue = ctx.runtimes.entries[name], ctx.runtimes.queue_of(name)
    fields = {**entry.model_dump(), "name": name, "isolation": entry.level}
    if entry.launcher == "dispatcher":
        return RuntimeItem.model_validate({**fields, "queue": None, "workers": 1, "worker_ids": []})
    consumers = await ctx.queue.consumers(queue)
    workers = None if consumers is None else len(consumers)
    return RuntimeItem.model_validate(
        {**fields, "queue": queue, "workers": workers, "worker_ids": sorted(consumers or ())}
    )
