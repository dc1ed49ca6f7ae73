"""Results of data checks."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from trace_etl.api.body import Key, Name
from trace_etl.api.user.data.checks import AcceptReply, AcceptRequest, CheckResultList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.db.pool import transaction
from trace_etl.state.partitions import check_results

router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/checks")
async def list_check_results(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    dataset: Annotated[
        Name | None, Query(description="Published name, or an output as dag.job.output.")
    ] = None,
    partition_key: Key | None = None,
    failed: bool = False,
) -> CheckResultList:
    """List the last results of data checks, newest first."""
    after = page.after(datetime, UUID)
    async with ctx.pool.connection() as conn:
        chosen = await check_results.find_dataset(conn, user.org_id, dataset) if dataset else None
        rows = await check_results.list_results(
            conn,
            user.org_id,
            dataset_uuid=chosen,
            partition_key=partition_key,
            failed=failed,
            after=after,
            limit=page.fetch,
        )
    return page.reply(CheckResultList, rows, lambda item: (item.checked_at, item.result_id))


@router.post("/checks/accept")
async def accept_check_results(
    body: AcceptRequest, user: CallerDep, ctx: ContextDep
) -> AcceptReply:
    """Accept failed results of a committed partition: jobs that wait for them read the partition."""
    async with transaction(ctx.pool) as conn:
        chosen = await check_results.find_dataset(conn, user.org_id, body.dataset)
        names, jobs = await check_results.accept(
            conn,
            user.org_id,
            chosen,
            partition_key=body.partition_key,
            check=body.check,
            by=f"user:{user.name}",
            reason=body.reason,
        )
    ctx.wake.outbox.set()
    return AcceptReply(
        dataset=body.dataset, partition_key=body.partition_key, checks=names, released_jobs=jobs
    )
