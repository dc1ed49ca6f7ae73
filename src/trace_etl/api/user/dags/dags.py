"""DAGs and deploys."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import FailFast, Field, StringConstraints

from trace_etl.api.body import ListReply, Name, Reply, UserRequest
from trace_etl.api.user.dags.jobs import JobItem
from trace_etl.api.user.dags.rollouts import DagPlan


class DagText(UserRequest):
    text: Annotated[str, StringConstraints(max_length=1024 * 1024, pattern=r"^[^\x00]*$")]
    filename: Annotated[str, StringConstraints(max_length=1024)] = "dag.yaml"


class PlanRequest(DagText):
    from_version: UUID | None = None
    """Plan the change from this version of the DAG. Default: the deployed one."""


class ColumnItem(UserRequest):
    name: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
    type: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    """The Spark SQL name of the type."""


class OutputColumns(UserRequest):
    job: Name
    output: Name
    columns: Annotated[list[ColumnItem], FailFast(), Field(max_length=10_000)]


class DeployRequest(DagText):
    base_version: UUID | None = None
    """The version that the plan was made for; null if the DAG was not deployed. The deploy is refused
    with 409 `deploy_conflict` if another version is deployed by then. Default: the current version."""
    allow_breaking: bool = False
    """Remove published names even if jobs of other DAGs read them. Otherwise refused with 409 `name_in_use`."""
    columns: Annotated[list[OutputColumns], FailFast(), Field(max_length=10_000)] = []
    """Columns of the outputs, as Spark's analyser found them. Stored with their generations."""


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
    """The generation that readers see."""
    building_version: UUID | None
    """The generation that is being built; it becomes current when the rollout is complete."""
    published: str | None
    columns: list[dict[str, str]] | None
    """Columns that the deploy found; null if the deploy did not check them."""


class DeployReply(Reply):
    dag: str
    dag_version: UUID
    changed: bool
    is_building: bool
    """Whether new generations are being built; `GET /v1/dags/{name}/rollout` shows the progress."""
    jobs: list[DeployedJob]
    datasets: list[DeployedDataset]
    plan: DagPlan
    """The changes that were made."""


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


class DagVersionItem(Reply):
    dag_version: UUID
    created_at: datetime
    """When this text was deployed for the first time."""
    is_current: bool


class DagVersionList(ListReply[DagVersionItem]):
    """One page of the versions of a DAG."""


class DagVersionDetail(DagVersionItem):
    text: str


class RemoveRequest(UserRequest):
    dry_run: bool = False
    """Return what would be removed; change nothing."""
    keep_data: bool = False
    """Keep the data: deploying the DAG again continues with it."""
    allow_breaking: bool = False
    """Remove published names even if jobs of other DAGs read them. Otherwise refused with 409 `name_in_use`."""


class RemoveReply(Reply):
    dag: str
    removed: bool
    """False for a dry run, or if the DAG was removed before."""
    jobs: list[str]
    names: list[str]
    """Published names that are free now."""
    readers: dict[str, list[str]]
    """Jobs of other DAGs that read one of the names, as `dag.job`."""
    tasks: int
    """Tasks that were canceled or asked to stop."""
    partitions: int
    row_count: int
    byte_count: int
