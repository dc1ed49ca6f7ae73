"""DAGs."""

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user.dags import DagDetail, DagList, DeployedJob, DeployReply, DeployRequest
from trace_etl.dispatcher.user_api import dag_parsing
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.dispatcher.user_api.routes.rollouts import describe_plan
from trace_etl.state.catalog import dags
from trace_etl.state.db.pool import transact
from trace_etl.state.rollout import backfill_consumers
from trace_etl.state.rollout import deploy as deploys

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/dags")
async def deploy(body: DeployRequest, user: CallerDep, ctx: ContextDep) -> DeployReply:
    """Deploy a DAG file. Deploying the same text again changes nothing."""
    dag = await dag_parsing.parse(body.text, ctx.parsing)
    async with ctx.pool.connection() as conn:
        base = body.base_version
        if "base_version" not in body.model_fields_set:
            base = await dags.get_deployed_version(conn, user.org_id, dag.name)
    columns = {
        (output.job, output.output): [column.model_dump() for column in output.columns]
        for output in body.columns
    }
    deployment = await transact(
        ctx.pool,
        lambda conn: deploys.deploy(conn, user.org_id, dag, body.text, base=base, columns=columns),
    )
    await transact(
        ctx.pool,
        lambda conn: backfill_consumers.backfill(conn, deployment.backfilled, only_recent=True),
    )
    async with ctx.pool.connection() as conn:
        datasets = await dags.list_dag_datasets(conn, deployment.dag_id)
    ctx.wake.outbox.set()
    ctx.wake.generations.set()
    return DeployReply(
        dag=dag.name,
        dag_version=deployment.dag_version,
        changed=deployment.changed,
        is_building=any(d.building_version for d in datasets) or deployment.plan.builds,
        jobs=[
            DeployedJob(
                name=job.name, operator=job.operator, runtime=job.runtime, activation=job.activation
            )
            for job in dag.jobs
        ],
        datasets=datasets,
        plan=describe_plan(deployment.plan),
    )


@router.get("/dags")
async def list_dags(user: CallerDep, ctx: ContextDep, page: PageDep) -> DagList:
    """List the deployed DAGs, by name."""
    (after,) = page.after(str) or ("",)
    async with ctx.pool.connection() as conn:
        rows = await dags.list_dags(conn, user.org_id, after=after, limit=page.fetch)
    return page.reply(DagList, rows, lambda dag: (dag.dag,))


@router.get("/dags/{name}")
async def get_dag(name: Name, user: CallerDep, ctx: ContextDep) -> DagDetail:
    """Show one deployed DAG with its text and its jobs."""
    async with ctx.pool.connection() as conn:
        return await dags.get_dag(conn, user.org_id, name)
