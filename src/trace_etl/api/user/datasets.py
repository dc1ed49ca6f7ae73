"""Datasets, their generations and partitions."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trace_etl.api.body import ListReply, Reply


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
    """Null: not published."""
    producers: list[str] = []
    """As `dag.job.output`; several write a buffered dataset."""


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


class GenerationItem(Reply):
    dataset_version: UUID
    generation_no: int
    state: Literal["current", "building", "old"]
    created_at: datetime
    partitions: int
    row_count: int
    byte_count: int


class ConsumerItem(Reply):
    """A job that reads a dataset by cursors, and how far it has got."""

    dag: str
    job: str
    cursor: int
    advanced_at: datetime


class DatasetDetail(DatasetItem):
    columns: list[dict[str, str]]
    partition_list: list[PartitionItem]
    """One page of them, by their blocks."""
    next: str | None = None
    gaps: list[tuple[int, int]]
    generations: list[GenerationItem] = []
    consumers: list[ConsumerItem] = []
