"""DAGs: plans, deploys, listing."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import StringConstraints

from trace_etl.api.body import ListReply, Name, Reply, Request
from trace_etl.api.user.jobs import JobItem
from trace_etl.api.user.rollouts import DagPlan


class PlanRequest(Request):
    text: Annotated[str, StringConstraints(max_length=1024 * 1024, pattern=r"^[^\x00]*$")]
    filename: Annotated[str, StringConstraints(max_length=1024)] = "dag.yaml"


class ColumnItem(Request):
    name: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
    type: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    """As Spark writes it."""


class OutputColumns(Request):
    job: Name
    output: Name
    columns: list[ColumnItem]


class DeployRequest(PlanRequest):
    base_version: UUID | None = None
    """The version that the plan was made for; null: there was no such DAG. Not given: whatever the
    DAG is at when the request arrives. When it is another by then: 409 `deploy_conflict`."""
    columns: list[OutputColumns] = []
    """What Spark's analyser found the columns of outputs to be; kept with their generations."""


class DeployedJob(Reply):
    name: str
    operator: str
    runtime: str
    activation: str


class DeployedDataset(Reply):
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    """What readers see."""
    building_version: UUID | None
    """What is being built beside it, and becomes current when the rollout is complete."""
    published: str | None
    columns: list[dict[str, str]] | None
    """What the deploy found its columns to be; null: nobody looked."""


class DeployReply(Reply):
    dag: str
    dag_version: UUID
    changed: bool
    is_building: bool
    """Whether new generations are built beside the old: `GET /v1/dags/{name}/rollout` tells."""
    jobs: list[DeployedJob]
    datasets: list[DeployedDataset]
    plan: DagPlan
    """What was done."""


class DagItem(Reply):
    dag: str
    dag_version: UUID
    deployed_at: datetime
    jobs: int


class DagList(ListReply[DagItem]):
    """One page of DAGs."""


class DagDetail(DagItem):
    text: str
    job_list: list[JobItem]
