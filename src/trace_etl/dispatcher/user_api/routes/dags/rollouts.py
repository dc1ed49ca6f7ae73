"""Deploy plans, rollout progress, rollback and promotion."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from trace_etl.api.body import Name
from trace_etl.api.user.dags.dags import PlanRequest
from trace_etl.api.user.dags.rollouts import PlanReply, RollbackReply, RolloutReply
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.http.client_connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnected,
    run_while_connected,
)
from trace_etl.state.db.pool import transact, transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.rollout import backfill_consumers, progress, rollback, rollouts, swap

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/plans", response_model=PlanReply)
async def plan(body: PlanRequest, user: CallerDep, ctx: ContextDep, request: Request) -> Response:
    """Show what deploying a DAG file would do now. Changes nothing."""
    planning = ctx.deploys.run(user.org_id, user.name, body)
    try:
        reply = await run_while_connected(planning, request.receive)
    except ClientDisconnected:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(reply, media_type="application/json")


@router.get("/dags/{name}/rollout")
async def rollout(
    name: Name, user: CallerDep, ctx: ContextDep, dag_version: UUID | None = None
) -> RolloutReply:
    """Show the last rollout of a DAG, or of one version: its progress, and why it waits."""
    async with snapshot(ctx.pool) as conn:
        return await progress.get_rollout(conn, user.org_id, name, dag_version)


@router.post("/dags/{name}/rollback")
async def roll_back(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    dry_run: Annotated[
        bool, Query(description="Return what it would do and change nothing.")
    ] = False,
) -> RollbackReply:
    """Return to the previous version immediately."""
    step = rollback.preview if dry_run else rollback.roll_back
    result = await transact(ctx.pool, lambda conn: step(conn, user.org_id, name))
    if not dry_run:
        moved = [dataset.dataset_uuid for dataset in result.reply.datasets]
        async with transaction(ctx.pool) as conn:
            await backfill_consumers.backfill(conn, result.revisions, only_recent=True)
            await backfill_consumers.backfill_readers(conn, moved, only_recent=True)
        ctx.wake.outbox.set()
    return result.reply


@router.post("/dags/{name}/promote")
async def promote(name: Name, user: CallerDep, ctx: ContextDep) -> RolloutReply:
    """Make the new generations current now, even if they are incomplete."""
    async with ctx.pool.connection() as conn:
        building = await rollouts.get_building(conn, user.org_id, name)
    moved = await transact(ctx.pool, lambda conn: swap.swap(conn, building, covered_as_of=None))
    await transact(
        ctx.pool, lambda conn: backfill_consumers.backfill_readers(conn, moved, only_recent=True)
    )
    ctx.wake.outbox.set()
    return await rollout(name, user, ctx, building.dag_version)
