"""Deploy plans, rollouts and rollbacks."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import Reply
from trace_etl.model.deploy_plan import AddedColumn, PlannedJob, PlannedName

Blocks = tuple[int, int]
"""First and last block."""


class DagPlan(Reply):
    jobs: list[PlannedJob]
    names: list[PlannedName]
    added_columns: list[AddedColumn] = []
    builds: bool
    """Whether new generations are built first and become current later."""
    partitions: int
    """Number of partitions to rebuild."""
    tasks: int
    """About how many tasks rebuild them: as many as wrote the old ones."""
    breaking: dict[str, list[str]]
    """Published names that disappear although jobs of other DAGs read them, with these jobs. A deploy is
    refused then, unless it has `allow_breaking`."""
    losing_rows: list[str] = []
    """Jobs whose rows of past ticks are not in the new generation. A deploy is refused then, unless it has
    `allow_breaking`."""


class PlanReply(Reply):
    dag: str
    base_version: UUID | None
    """Pass it to the deploy, which is refused if another version is deployed by then."""
    is_deployed: bool
    """Whether this text is deployed already, so that a deploy would change nothing."""
    warnings: list[str]
    """What the stack lacks to run the DAG, such as secrets."""
    plan: DagPlan


class RolloutTarget(Reply):
    """A dataset whose new generation must cover the old one before it becomes current."""

    job: str
    output: str
    name: str | None
    from_version: UUID
    to_version: UUID
    old_partitions: int
    new_partitions: int
    blocks: int
    missing_blocks: int
    missing: list[Blocks]
    missing_keys: list[str]
    cursor: int | None
    new_cursor: int | None


class RolloutJob(Reply):
    """Task counts of a job's new generation, without completed tasks."""

    job: str
    queued: int
    running: int
    retrying: int
    failed: int
    canceled: int


class RolloutFailure(Reply):
    task_id: UUID
    job: str
    partition_key: str | None
    attempt: int
    error_code: str | None
    error_message: str | None


class RolloutReply(Reply):
    rollout_id: UUID
    dag: str
    dag_version: UUID
    previous_version: UUID | None
    state: Literal["building", "complete", "rolled_back", "superseded"]
    started_at: datetime
    ended_at: datetime | None
    targets: list[RolloutTarget]
    jobs: list[RolloutJob]
    failures: list[RolloutFailure]
    """The first tasks that failed permanently."""
    reason: str | None
    """A sentence that says what the rollout waits for."""


class RestoredDataset(Reply):
    """A dataset whose readers see an earlier generation again."""

    job: str
    output: str
    dataset: str | None
    """The published name."""
    dataset_uuid: UUID
    from_version: UUID | None
    to_version: UUID


class RollbackReply(Reply):
    dry_run: bool
    dag: str
    dag_version: UUID
    """The version that is current again."""
    from_version: UUID
    canceled: int
    """Tasks of the other version that were canceled or asked to stop."""
    requeued: int
    """Tasks of this version that its replacement had canceled and that run again."""
    datasets: list[RestoredDataset]
