"""The final dump: the columns of each table that the checker looks at."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict


class Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TaskRow(Fields):
    task_id: UUID
    status: str
    attempt: int
    max_attempts: int
    job_id: UUID | None = None
    revision_id: UUID | None = None
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None
    partition_key: str | None = None
    cursor_value: int | None = None
    invalidation_id: UUID | None = None
    dedupe_key: str = ""

    @property
    def is_again(self) -> bool:
        """Made for something that changed, not for an event."""
        return self.invalidation_id is not None or self.dedupe_key.startswith(
            ("again:", "rebuild:")
        )

    @property
    def scope_key(self) -> str:
        return f"c:{self.cursor_value}" if self.partition_key is None else f"p:{self.partition_key}"


class AttemptRow(Fields):
    task_id: UUID
    attempt: int
    outcome: str
    cause: str | None = None


class EventRow(Fields):
    event_id: UUID
    producer_task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    scope_key: str
    routed_at: str | None = None

    @property
    def told_key(self) -> str:
        """The scope as it was told; a cursor that came again after a rewrite has a number."""
        return re.sub(r"^(c:\d+)@\d+$", r"\1", self.scope_key)


class OutboxRow(Fields):
    outbox_id: int
    kind: str
    subject: UUID


class PartitionRow(Fields):
    dataset_version: UUID
    partition_key: str
    range_start: int | None = None
    range_end: int | None = None
    storage_ref: dict[str, Any]
    task_id: UUID
    attempt: int


class BufferRow(Fields):
    publish_id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    batch_uri: str


class MessageRow(Fields):
    """What waits in a queue. Dump it only where nobody consumes."""

    queue: str
    body: dict[str, Any]


class DatasetRow(Fields):
    """A dataset and its current generation."""

    dataset_uuid: UUID
    dataset_version: UUID | None


class ConsumerRow(Fields):
    """A reactive job that reads a dataset."""

    dataset_uuid: UUID
    job_id: UUID


ROW_TYPES: Mapping[str, type[Fields]] = {
    "tasks": TaskRow,
    "task_attempts": AttemptRow,
    "events": EventRow,
    "outbox": OutboxRow,
    "partitions": PartitionRow,
    "buffer_publishes": BufferRow,
    "messages": MessageRow,
    "datasets": DatasetRow,
    "consumers": ConsumerRow,
}
_NAMES: Mapping[type[Fields], str] = {kind: name for name, kind in ROW_TYPES.items()}
F = TypeVar("F", bound=Fields)


@dataclass(frozen=True)
class Row:
    line: int
    table: str
    fields: Fields


@dataclass(frozen=True)
class Dump:
    """Rows by table. A table that was not dumped says nothing; an empty one says a lot."""

    tables: frozenset[str]
    rows: Mapping[str, list[Row]]

    def has(self, *kinds: type[Fields]) -> bool:
        return all(_NAMES[kind] in self.tables for kind in kinds)

    def of(self, kind: type[F]) -> list[tuple[int, F]]:
        """The rows of a table, each with its line."""
        found = self.rows.get(_NAMES[kind], [])
        return [(row.line, row.fields) for row in found if isinstance(row.fields, kind)]
