"""The graph of jobs."""

from uuid import UUID

from fastapi import APIRouter, Response

from trace_etl.api.body import Name
from trace_etl.api.user.dags.jobs import JobItem
from trace_etl.api.user.tasks.tasks import JobTaskCounts
from trace_etl.api.user.views.graph import Graph, GraphEdge, GraphNode
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.catalog import dags, graph
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import JobNameFilter
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.flow import pauses
from trace_etl.state.tasks import task_counts

router = APIRouter(prefix="/v1", tags=["dags"])
_MAX_PAUSES = 10_000
_Key = tuple[str, str]


@router.get("/dags/{name}/graph", response_model=Graph)
async def get_graph(name: Name, user: CallerDep, ctx: ContextDep) -> Response:
    """Show the jobs of a DAG as a graph, with their task counts and pauses."""
    async with snapshot(ctx.pool) as conn:
        dag = await dags.get_dag(conn, user.org_id, name)
        edges = await graph.list_edges(conn, user.org_id, name)
        jobs = dag.job_list + await _list_neighbours(conn, user.org_id, name, edges)
        counts = await _count_tasks(conn, user.org_id, {job.dag for job in jobs})
        paused = await pauses.list_pauses(
            conn, user.org_id, JobNameFilter(), after=None, limit=_MAX_PAUSES
        )
    shown = {(job.dag, job.job) for job in jobs}
    reply = Graph(
        nodes=[_make_node(job, counts[job.dag, job.job]) for job in jobs],
        edges=edges,
        pauses=[pause for pause in paused if (pause.dag, pause.job) in shown],
    )
    # FastAPI would validate the jobs again, which takes long for a large DAG.
    return Response(reply.model_dump_json(), media_type="application/json")


async def _list_neighbours(
    conn: Conn, org_id: UUID, dag: str, edges: list[GraphEdge]
) -> list[JobItem]:
    """List the jobs of other DAGs at the ends of edges."""
    ends = {(e.from_dag, e.from_job) for e in edges} | {(e.to_dag, e.to_job) for e in edges}
    others = sorted({other for other, _ in ends if other != dag})
    found = [job for other in others for job in (await dags.get_dag(conn, org_id, other)).job_list]
    return [job for job in found if (job.dag, job.job) in ends]


async def _count_tasks(conn: Conn, org_id: UUID, names: set[str]) -> dict[_Key, JobTaskCounts]:
    counted = [await task_counts.count_tasks(conn, org_id, name) for name in sorted(names)]
    return {(item.dag, item.job): item for items in counted for item in items}


def _make_node(job: JobItem, counts: JobTaskCounts) -> GraphNode:
    # `failed` of the job counts its current definition only.
    return GraphNode(
        **dict(job),
        queued=counts.queued,
        running=counts.running,
        completed=counts.completed,
        canceled=counts.canceled,
    )
