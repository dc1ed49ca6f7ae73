"""The graph of jobs with its state."""

from trace_etl.api.body import Reply
from trace_etl.api.user.dags.jobs import JobItem
from trace_etl.api.user.tasks.pressure import PauseItem


class GraphNode(JobItem):
    queued: int
    running: int
    completed: int
    canceled: int


class GraphEdge(Reply):
    """A dataset that a job reads, or whose events start it."""

    from_dag: str
    from_job: str
    output: str
    dataset: str | None
    """The published name of the dataset."""
    to_dag: str
    to_job: str
    reads: bool
    """False if the dataset only triggers the job."""


class Graph(Reply):
    nodes: list[GraphNode]
    """The jobs, and the jobs of other DAGs that they read from or that read from them."""
    edges: list[GraphEdge]
    pauses: list[PauseItem]
    """Pauses of these jobs. One with `by_job` is backpressure, along the edges up from that job."""
