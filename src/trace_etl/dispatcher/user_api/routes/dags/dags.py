"""DAGs."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter, Response

from trace_etl.api.body import Name
from trace_etl.api.user.dags.dags import (
    DagDetail,
    DagList,
    DagVersionDetail,
    DagVersionList,
    DeployReply,
    DeployRequest,
    RemoveReply,
    RemoveRequest,
)
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.catalog import dags
from trace_etl.state.db.pool import transact
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.rollout import remove

router = APIRouter(prefix="/v1", tags=["dags"])


@router.post("/dags", response_model=DeployReply)
async def deploy(body: DeployRequest, user: CallerDep, ctx: ContextDep) -> Response:
    """Deploy a DAG file. Deploying the same text again changes nothing."""
    reply = await ctx.deploys.run(user.org_id, user.name, body)
    ctx.wake.outbox.set()
    ctx.wake.generations.set()
    return Response(reply, media_type="application/json")


@router.get("/dags")
async def list_dags(user: CallerDep, ctx: ContextDep, page: PageDep) -> DagList:
    """List the deployed DAGs, by name."""
    (after,) = page.after(str) or ("",)
    async with ctx.pool.connection() as conn:
        rows = await dags.list_dags(conn, user.org_id, after=after, limit=page.fetch)
    return page.reply(DagList, rows, lambda dag: (dag.dag,))


@router.get("/dags/{name}", response_model=DagDetail)
async def get_dag(name: Name, user: CallerDep, ctx: ContextDep) -> Response:
    """Show one deployed DAG with its text and its jobs."""
    async with snapshot(ctx.pool) as conn:
        dag = await dags.get_dag(conn, user.org_id, name)
    # FastAPI would validate the jobs again, which takes long for a large DAG.
    return Response(dag.model_dump_json(by_alias=True), media_type="application/json")


@router.get("/dags/{name}/versions")
async def list_versions(
    name: Name, user: CallerDep, ctx: ContextDep, page: PageDep
) -> DagVersionList:
    """List the versions of a DAG that were deployed, newest first."""
    after = page.after(datetime, UUID)
    async with ctx.pool.connection() as conn:
        rows = await dags.list_versions(conn, user.org_id, name, after=after, limit=page.fetch)
    return page.reply(DagVersionList, rows, lambda item: (item.created_at, item.dag_version))


@router.get("/dags/{name}/versions/{dag_version}")
async def get_version(
    name: Name, dag_version: UUID, user: CallerDep, ctx: ContextDep
) -> DagVersionDetail:
    """Show one version of a DAG with its text. `POST /v1/plans` shows what deploying it would do."""
    async with ctx.pool.connection() as conn:
        return await dags.get_version(conn, user.org_id, name, dag_version)


@router.post("/dags/{name}/remove")
async def remove_dag(
    name: Name, body: RemoveRequest, user: CallerDep, ctx: ContextDep
) -> RemoveReply:
    """Remove a DAG: cancel its tasks, retire its jobs, free its published names, delete its data."""
    if body.dry_run:
        async with snapshot(ctx.pool) as conn:
            return await remove.preview(conn, user.org_id, name)
    removed = await transact(
        ctx.pool,
        lambda conn: remove.remove(
            conn,
            user.org_id,
            name,
            keep_data=body.keep_data,
            allow_breaking=body.allow_breaking,
        ),
    )
    ctx.wake.outbox.set()
    return removed
