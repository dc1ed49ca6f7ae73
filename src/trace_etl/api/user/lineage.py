"""The user API: what was made from what."""

from uuid import UUID

from trace_etl.api.body import Reply


class LineageDataset(Reply):
    """A dataset above or below."""

    depth: int
    dataset: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID


class LineagePartition(LineageDataset):
    """A partition above or below, and which attempt made it."""

    dataset_version: UUID
    partition_key: str
    """`*`: the whole dataset, as it stood."""
    task_id: UUID | None
    """Null: it was rewritten while its reader ran."""
    attempt: int | None
    is_current: bool
    """Still what its dataset shows."""
    via_version: UUID
    via_key: str
    """The partition one step nearer."""


class DatasetLineage(Reply):
    dataset: str
    producers: list[str] = []
    """As `dag.job.output`; several write a buffered dataset."""
    dataset_uuid: UUID
    dataset_version: UUID
    up: list[LineageDataset]
    down: list[LineageDataset]


class PartitionLineage(Reply):
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    task_id: UUID
    attempt: int
    up: list[LineagePartition]
    down: list[LineagePartition]
