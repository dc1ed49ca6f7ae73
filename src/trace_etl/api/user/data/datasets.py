"""Datasets, their generations and partitions."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trace_etl.api.body import ListReply, Reply
from trace_etl.model.roles import Role

GenerationState = Literal["current", "building", "old"]


class DatasetItem(Reply):
    name: str | None
    dag: str
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    partitions: int
    row_count: int
    byte_count: int
    range_start: int | None
    range_end: int | None
    updated_at: datetime | None
    write_mode: str | None = None
    """Null if the dataset is not published."""
    read_roles: list[Role] | None = None
    """The roles whose users may query it, and the roles above them; null: every role."""
    hot: str | None = None
    """The output with its newest rows, as `job.output`. Queries read both."""
    producers: list[str] = []
    """Outputs that write the dataset, as `dag.job.output`; a buffered dataset may have several."""


class DatasetList(ListReply[DatasetItem]):
    """One page of datasets."""


class PartitionItem(Reply):
    partition_key: str
    start: int | None
    end: int | None
    row_count: int
    byte_count: int
    task_id: UUID
    attempt: int
    committed_at: datetime
    storage_ref: dict[str, Any]
    config_hash: str | None = None
    """The hash of the definition that made the rows, if the task reported one."""


class GenerationItem(Reply):
    dataset_version: UUID
    generation_no: int
    state: GenerationState
    created_at: datetime
    partitions: int
    row_count: int
    byte_count: int


class ConsumerItem(Reply):
    """A job that reads a dataset by cursor, and the cursor it has reached."""

    dag: str
    job: str
    cursor: int
    advanced_at: datetime


class DatasetColumn(Reply):
    name: str
    type: str
    """The Spark name of the type. A column that the DAG file declares has the name it has there."""
    comment: str | None = None
    """What the column holds, if its operator or the DAG file says so."""


class GenerationName(Reply):
    dataset_version: UUID
    generation_no: int
    state: GenerationState
    created_at: datetime


class DatasetOutline(Reply):
    """What a dataset is, without counting its partitions: it costs the same for a million of them."""

    name: str
    description: str
    dag: str
    job: str
    output: str
    dataset_uuid: UUID
    dataset_version: UUID
    write_mode: str
    read_roles: list[Role] | None
    hot: str | None
    """The output with its newest rows, as `job.output`. Queries read both."""
    producers: list[str]
    range_start: int | None
    range_end: int | None
    updated_at: datetime | None
    """When its last block was committed; null without partitions."""
    columns: list[DatasetColumn]
    generations: list[GenerationName]
    """The newest 100."""
    consumers: list[ConsumerItem]


class DatasetDetail(DatasetItem):
    description: str = ""
    columns: list[DatasetColumn]
    partition_list: list[PartitionItem]
    """One page of partitions, ordered by block."""
    next: str | None = None
    gaps: list[tuple[int, int]]
    generations: list[GenerationItem] = []
    consumers: list[ConsumerItem] = []
