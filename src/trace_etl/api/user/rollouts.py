"""Plans, rollouts and the way back."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trace_etl.api.body import Reply

Blocks = tuple[int, int]
"""First and last block."""


class StockItem(Reply):
    """What a generation holds."""

    scopes: int
    partitions: int
    row_count: int
    byte_count: int
    ranges: list[Blocks]


class FieldChangeItem(Reply):
    field: str
    before: Any
    after: Any


class JobPlanItem(Reply):
    name: str
    change: Literal["added", "changed", "removed", "unchanged"]
    action: Literal["keep", "adopt", "start", "build", "retire"]
    """keep: goes on as it is. adopt: goes on with the new definition, on the same generation.
    start: a new generation, current at once. build: a new generation beside the old one, until it
    is complete. retire: stops."""
    fields: list[FieldChangeItem]
    because: list[str]
    """Why its outputs get a new generation: fields of its own, or jobs upstream of it."""
    rebuild: dict[str, StockItem]
    """By output: what the old generation holds and the new one has to cover."""


class NameChangeItem(Reply):
    name: str
    before: str | None
    """`job.output`; null: the name is new."""
    after: str | None
    """`job.output`; null: the name goes away."""
    rebuild: StockItem | None
    """What the output that it moves to has to cover first."""
    readers: list[str]
    """Jobs of other DAGs, as `dag.job`, that read the output which loses the name: they go on with
    what is there, and get nothing new by this name."""


class DagPlan(Reply):
    jobs: list[JobPlanItem]
    names: list[NameChangeItem]
    builds: bool
    """Whether anything is built beside the old, so that pointers move later."""
    partitions: int
    """How many partitions are rebuilt."""


class PlanReply(Reply):
    dag: str
    base_version: UUID | None
    """Pass it on to the deploy, which is refused if the DAG is at another version by then."""
    is_deployed: bool
    """This very text is deployed: to deploy it again changes nothing."""
    plan: DagPlan


class RolloutTarget(Reply):
    """A dataset whose new generation has to cover the old one before the pointers move."""

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
    """The tasks of a job's new generation that have not completed."""

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
    """The first tasks that failed for good."""
    reason: str | None
    """What it waits for, in words."""


class RollbackReply(Reply):
    dag: str
    dag_version: UUID
    """What counts again."""
    from_version: UUID
    canceled: int
    """Tasks of the abandoned version that waited, or were told to stop."""
