"""Lineage of datasets and partitions."""

from uuid import UUID

from trace_etl.api.body import Reply


class LineageDataset(Reply):
    """An upstream or downstream dataset."""

    depth: int
    dataset: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID


class LineageLink(Reply):
    """A dataset that another one is made from."""

    from_uuid: UUID
    to_uuid: UUID


class LineagePartition(LineageDataset):
    """An upstream or downstream partition, and the attempt that wrote it."""

    dataset_version: UUID
    partition_key: str
    """`*` means the whole dataset at that time."""
    task_id: UUID | None
    """Null if the partition was rewritten while its reader ran."""
    attempt: int | None
    is_current: bool
    """Whether this is still the current data of the partition."""
    via_version: UUID
    via_key: str
    """The next partition on the path to the requested one."""


class DatasetLineage(Reply):
    dataset: str
    producers: list[str] = []
    """Outputs that write the dataset, as `dag.job.output`; a buffered dataset may have several."""
    dataset_uuid: UUID
    dataset_version: UUID
    up: list[LineageDataset]
    down: list[LineageDataset]
    links: list[LineageLink] = []
    """The edges between all of these datasets."""


class PartitionLineage(Reply):
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    task_id: UUID
    attempt: int
    up: list[LineagePartition]
    down: list[LineagePartition]
