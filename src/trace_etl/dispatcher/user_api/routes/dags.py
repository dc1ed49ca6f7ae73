"""DAGs."""

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import dags as wire
from trace_etl.api.user.jobs import JobItem
from trace_etl.dag.parsing import parse_dag
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.dispatcher.user_api.routes.rollouts import described
from trace_etl.model.dag import Job
from trace_etl.state.catalog import dags, jobs
from trace_etl.state.catalog.jobs import JobFilter
from trace_etl.state.db.pool import transact
from trace_etl.state.rollout import backfill_consumers
from trace_etl.state.rollout import deploy as deploys

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/dags")
async def deploy(body: wire.DeployRequest, user: CallerDep, ctx: ContextDep) -> wire.DeployReply:
    """Make a file's text the DAG it names. The same text again changes nothing."""
    dag = await asyncio.to_thread(parse_dag, body.text)  # a large file takes its time
    async with ctx.pool.connection() as conn:
        base = body.base_version
        if "base_version" not in body.model_fields_set:
            base = await dags.version_of(conn, user.org_id, dag.name)
    columns = {
        (told.job, told.output): [column.model_dump() for column in told.columns]
        for told in body.columns
    }
    done = await transact(
        ctx.pool,
        lambda conn: deploys.deploy(conn, user.org_id, dag, body.text, base=base, columns=columns),
    )
    await transact(ctx.pool, lambda conn: backfill_consumers.fill(conn, done.filled, lately=True))
    async with ctx.pool.connection() as conn:
        datasets = await dags.datasets_of(conn, done.dag_id)
    ctx.wake.outbox.set()
    ctx.wake.generations.set()
    return wire.DeployReply(
        dag=dag.name,
        dag_version=done.dag_version,
        changed=done.changed,
        is_building=any(d.building_version for d in datasets) or done.plan.builds,
        jobs=[wire.DeployedJob.model_validate(_job(job)) for job in dag.jobs],
        datasets=[wire.DeployedDataset.model_validate(asdict(d)) for d in datasets],
        plan=described(done.plan),
    )


def _job(job: Job) -> dict[str, str]:
    return {
        "name": job.name,
        "operator": job.operator,
        "runtime": job.runtime,
        "activation": job.activation,
    }


@router.get("/dags")
async def list_dags(user: CallerDep, ctx: ContextDep, page: PageDep) -> wire.DagList:
    """The deployed DAGs, by name."""
    (after,) = page.after(str) or ("",)
    async with ctx.pool.connection() as conn:
        found = await dags.list_dags(conn, user.org_id, after=after, limit=page.fetch)
    rows, following = page.cut(found, lambda row: (row[0],))
    return wire.DagList(items=[_item(row) for row in rows], next=following)


@router.get("/dags/{name}")
async def get_dag(name: Name, user: CallerDep, ctx: ContextDep) -> wire.DagDetail:
    """One deployed DAG, with the text it was deployed from and its jobs."""
    async with ctx.pool.connection() as conn:
        row, text = await dags.get(conn, user.org_id, name)
        found = await jobs.listing(conn, user.org_id, JobFilter(dag=name), after=None, limit=10_000)
    listed = [JobItem.model_validate(asdict(view)) for view in found]
    return wire.DagDetail(**_item(row).model_dump(), text=text, job_list=listed)


def _item(row: tuple[Any, ...]) -> wire.DagItem:
    return wire.DagItem(dag=row[0], dag_version=row[1], deployed_at=row[2], jobs=row[3])
