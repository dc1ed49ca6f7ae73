"""Plans of deploys, how far the last one is, and the way back."""

import asyncio
from dataclasses import asdict
from typing import Any
from uuid import UUID

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import rollouts as wire
from trace_etl.api.user.dags import PlanRequest
from trace_etl.dag.parsing import parse_dag
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.policy import rollout_reasons
from trace_etl.policy.deploy_plan import Plan
from trace_etl.state.db.pool import transact, transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.rollout import backfill_consumers, deploy, progress, rollouts
from trace_etl.state.rollout.progress import Progress, Target

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/plans")
async def plan(body: PlanRequest, user: CallerDep, ctx: ContextDep) -> wire.PlanReply:
    """What a deploy of a file's text would do now. Changes nothing."""
    dag = await asyncio.to_thread(parse_dag, body.text)  # a large file takes its time
    async with snapshot(ctx.pool) as conn:
        made = await deploy.plan(conn, user.org_id, dag, body.text)
    return wire.PlanReply(
        dag=dag.name,
        base_version=made.dag_version,
        is_deployed=made.is_deployed,
        plan=described(made.plan),
    )


def described(plan: Plan) -> wire.DagPlan:
    """A plan as the API tells it."""
    held = [stock for job in plan.jobs for stock in job.rebuild.values()]
    held += [name.rebuild for name in plan.names if name.rebuild]
    told: dict[str, Any] = asdict(plan)
    rebuilt = sum(stock.partitions for stock in held)
    return wire.DagPlan.model_validate({**told, "builds": plan.builds, "partitions": rebuilt})


@router.get("/dags/{name}/rollout")
async def rollout(
    name: Name, user: CallerDep, ctx: ContextDep, dag_version: UUID | None = None
) -> wire.RolloutReply:
    """The last rollout of a DAG, or of one version: what is covered, and what it waits for."""
    async with snapshot(ctx.pool) as conn:
        found = await progress.progress(conn, user.org_id, name, dag_version)
    return wire.RolloutReply.model_validate(
        {
            **asdict(found.rollout),
            "targets": [asdict(target) for target in found.targets],
            "jobs": [asdict(job) for job in found.jobs],
            "failures": [asdict(task) for task in found.failures],
            "reason": rollout_reasons.reason(_facts(found)),
        }
    )


@router.post("/dags/{name}/rollback")
async def roll_back(name: Name, user: CallerDep, ctx: ContextDep) -> wire.RollbackReply:
    """Go back to the version before, at once."""
    done = await transact(ctx.pool, lambda conn: rollouts.roll_back(conn, user.org_id, name))
    async with transaction(ctx.pool) as conn:
        await backfill_consumers.fill(conn, done.revisions, lately=True)
        await backfill_consumers.fill_readers(conn, done.datasets, lately=True)
    ctx.wake.outbox.set()
    return wire.RollbackReply(
        dag=name,
        dag_version=done.dag_version,
        from_version=done.from_version,
        canceled=done.canceled,
    )


@router.post("/dags/{name}/promote")
async def promote(name: Name, user: CallerDep, ctx: ContextDep) -> wire.RolloutReply:
    """Make the new generations current now, whatever they lack."""
    async with ctx.pool.connection() as conn:
        one = await rollouts.building_of(conn, user.org_id, name)
    moved = await transact(ctx.pool, lambda conn: rollouts.swap(conn, one, seen=None))
    await transact(ctx.pool, lambda conn: backfill_consumers.fill_readers(conn, moved, lately=True))
    ctx.wake.outbox.set()
    return await rollout(name, user, ctx, one.dag_version)


def _facts(found: Progress) -> rollout_reasons.Facts:
    first = found.failures[0] if found.failures else None
    return rollout_reasons.Facts(
        dag=found.rollout.dag,
        queued=sum(job.queued for job in found.jobs),
        running=sum(job.running for job in found.jobs),
        retrying=sum(job.retrying for job in found.jobs),
        failed=sum(job.failed for job in found.jobs),
        canceled=sum(job.canceled for job in found.jobs),
        first_failure=f"{first.job} {first.partition_key or ''} ({first.task_id}): "
        f"{first.error_message}"
        if first
        else None,
        lacks=[told for target in found.targets if (told := _lacks(target))],
    )


def _lacks(target: Target) -> str | None:
    place = f"{target.job}.{target.output} lacks"
    if target.missing:
        start, end = target.missing[0]
        more = f" and {len(target.missing) - 1} ranges more" if len(target.missing) > 1 else ""
        return f"{place} blocks {start}-{end}{more}"
    if target.missing_keys:
        return f"{place} {len(target.missing_keys)} partitions, {target.missing_keys[0]} first"
    if target.cursor is not None and (target.new_cursor or -1) < target.cursor:
        return f"{place} what comes after {target.new_cursor}, up to {target.cursor}"
    return None
