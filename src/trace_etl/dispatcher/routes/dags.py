"""DAGs, jobs and triggers."""

from dataclasses import asdict

from fastapi import APIRouter

from trace_etl.dispatcher.routes.context import ContextDep, ReaderDep, WriterDep
from trace_etl.model.scope import Range
from trace_etl.plan.dagfile import parse_dag
from trace_etl.state import dags, events, jobs
from trace_etl.state.pool import transaction
from trace_etl.wire import user as wire

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/dags")
async def deploy(body: wire.DeployRequest, user: WriterDep, ctx: ContextDep) -> wire.DeployReply:
    """Make a file's text the DAG it names. The same text again changes nothing."""
    dag = parse_dag(body.text)
    async with transaction(ctx.pool) as conn:
        done = await dags.deploy(conn, user.org_id, dag, body.text)
    return wire.DeployReply(
        dag=dag.name,
        dag_version=done.dag_version,
        changed=done.changed,
        jobs=[
            wire.DeployedJob(
                name=job.name,
                operator=job.operator,
                runtime=job.runtime,
                activation=job.activation,
            )
            for job in dag.jobs
        ],
        datasets=[wire.DeployedDataset.model_validate(asdict(d)) for d in done.datasets],
    )


@router.get("/dags")
async def list_dags(user: ReaderDep, ctx: ContextDep) -> wire.DagList:
    """The deployed DAGs."""
    async with ctx.pool.connection() as conn:
        rows = await dags.list_dags(conn, user.org_id)
    return wire.DagList(
        items=[wire.DagItem(dag=r[0], dag_version=r[1], deployed_at=r[2], jobs=r[3]) for r in rows]
    )


@router.get("/jobs")
async def list_jobs(
    user: ReaderDep,
    ctx: ContextDep,
    dag: wire.Name | None = None,
    source_kind: wire.Name | None = None,
) -> wire.JobList:
    """The jobs of the deployed DAGs."""
    async with ctx.pool.connection() as conn:
        found = await jobs.listing(conn, user.org_id, dag=dag, source_kind=source_kind)
    return wire.JobList(items=[wire.JobItem.model_validate(asdict(job)) for job in found])


@router.post("/triggers")
async def trigger(body: wire.TriggerRequest, user: WriterDep, ctx: ContextDep) -> wire.TriggerReply:
    """Emit a source's event for a block range, once."""
    span = Range.checked(body.start, body.end)
    async with transaction(ctx.pool) as conn:
        done = await events.trigger(conn, user.org_id, body.dag, body.job, span)
    ctx.kicks.outbox.set()
    return wire.TriggerReply(
        event_id=done.event_id,
        dag=body.dag,
        job=body.job,
        partition_key=span.key,
        created=done.created,
        deferred_by=done.deferred_by,
    )
