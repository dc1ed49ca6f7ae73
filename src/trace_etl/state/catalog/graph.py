"""Read the graph of jobs: which job reads which dataset."""

from uuid import UUID

from trace_etl.api.user.views.graph import GraphEdge
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_EDGES = """
SELECT fg.name AS from_dag, fj.name AS from_job, w.output_name AS output, p.name AS dataset,
       tg.name AS to_dag, tj.name AS to_job, bool_or(i.reads) AS reads
  FROM job_inputs i
  JOIN jobs tj ON tj.revision_id = i.revision_id AND tj.active JOIN dags tg ON tg.dag_id = tj.dag_id
  JOIN dataset_producers w ON w.dataset_uuid = i.dataset_uuid
  JOIN jobs fj ON fj.job_id = w.job_id AND fj.active JOIN dags fg ON fg.dag_id = fj.dag_id
  LEFT JOIN publications p ON p.dataset_uuid = i.dataset_uuid
 WHERE tj.org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR tg.name = %(dag)s OR fg.name = %(dag)s)
 GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 5, 6
"""


async def list_edges(conn: Conn, org_id: UUID, dag: str | None) -> list[GraphEdge]:
    """List the datasets that connect the jobs of a DAG with each other and with other DAGs."""
    return await fetch_all(conn, GraphEdge, _EDGES, {"org_id": org_id, "dag": dag})
