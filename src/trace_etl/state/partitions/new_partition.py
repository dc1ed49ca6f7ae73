"""A partition that an attempt wrote and asks to commit."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trace_etl.model.scope import Range, make_range


@dataclass(frozen=True)
class NewPartition:
    """A new partition: its blocks, its storage, and its certificate."""

    dataset_uuid: UUID
    dataset_version: UUID
    partition_key: str
    range_start: int | None
    range_end: int | None
    storage_ref: dict[str, Any]
    row_count: int
    byte_count: int
    object_count: int
    """Objects under the prefix: the files and the marker."""
    columns: list[dict[str, str]]
    config_hash: str | None = None
    """The hash of the definition that made the rows, as the task reported it."""
    verified: dict[str, Any] | None = None
    """What was verified of the blocks, if they were read from a chain."""
    content_hash: str | None = None
    row_sum: str | None = None
    row_sums: list[tuple[list[str], str]] | None = None
    """The row sums by the columns of the files that the rows were copied from, if some lack columns."""
    files: list[dict[str, Any]] | None = None
    """Name, rows, bytes and SHA-256 of each file."""

    @property
    def is_provisional(self) -> bool:
        """Whether it has blocks that were not final when they were read."""
        return self.verified is not None and bool(self.verified.get("provisional"))

    @property
    def rejected(self) -> list[dict[str, Any]]:
        """The answers of nodes that were rejected while its blocks were read."""
        return [] if self.verified is None else self.verified.get("rejected", [])

    @property
    def span(self) -> Range | None:
        return make_range(self.range_start, self.range_end)
