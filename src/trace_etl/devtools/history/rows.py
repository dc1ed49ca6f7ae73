"""Rows of the final dump: the columns of each table that the checker uses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict


class DumpRow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TaskRow(DumpRow):
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
    bulk: bool = False
    created_at: datetime | None = None

    @property
    def is_rebuild(self) -> bool:
        """Whether an invalidation, a rebuild or a forced backfill created the task, not an event."""
        if self.invalidation_id is not None:
            return True
        by_event = rf"[^:]*:[^:]*:[^:]*:{re.escape(self.scope_key)}(@\d+)?|trigger:.*|always_on:.*"
        return bool(self.dedupe_key) and not re.fullmatch(by_event, self.dedupe_key)

    @property
    def scope_key(self) -> str:
        return f"c:{self.cursor_value}" if self.partition_key is None else f"p:{self.partition_key}"


class AttemptRow(DumpRow):
    task_id: UUID
    attempt: int
    outcome: str
    cause: str | None = None


class ReportRow(DumpRow):
    """A row that an attempt reported about a dataset."""

    attempt: int
    dataset_uuid: UUID


class EventRow(ReportRow):
    event_id: UUID
    producer_task_id: UUID
    dataset_version: UUID
    scope_key: str
    routed_at: str | None = None
    accepted_at: datetime | None = None

    @property
    def reported_key(self) -> str:
        """The scope as the producer sent it, without the number that a repeated cursor gets."""
        return re.sub(r"^(c:\d+)@\d+$", r"\1", self.scope_key)


class OutboxRow(DumpRow):
    outbox_id: int
    kind: str
    subject: UUID


class PartitionRow(DumpRow):
    dataset_version: UUID
    partition_key: str
    range_start: int | None = None
    range_end: int | None = None
    storage_ref: dict[str, Any]
    task_id: UUID
    attempt: int


class BufferRow(ReportRow):
    publish_id: UUID
    task_id: UUID
    batch_uri: str
    sunk_at: str | None = None
    failed_at: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the sink wrote or refused the batch, so that its message is gone."""
        return self.sunk_at is not None or self.failed_at is not None


class MessageRow(DumpRow):
    """A message in a queue. Dump it only if no consumer is running."""

    queue: str
    body: dict[str, Any]


class DatasetRow(DumpRow):
    """A dataset and its current generation."""

    dataset_uuid: UUID
    dataset_version: UUID | None


class ConsumerRow(DumpRow):
    """A reactive job that reads a dataset."""

    dataset_uuid: UUID
    job_id: UUID
    dataset_version: UUID | None = None
    """The generation that the job reads. None: unknown."""
    since: datetime | None = None
    """The deploy of the job's revision. None: it read every event."""


class DeferredRow(DumpRow):
    """An event that a paused job, or the consumers of a paused source, get later."""

    event_id: UUID
    job_id: UUID


ROW_TYPES: Mapping[str, type[DumpRow]] = {
    "tasks": TaskRow,
    "task_attempts": AttemptRow,
    "events": EventRow,
    "outbox": OutboxRow,
    "partitions": PartitionRow,
    "buffer_publishes": BufferRow,
    "messages": MessageRow,
    "datasets": DatasetRow,
    "consumers": ConsumerRow,
    "deferred_events": DeferredRow,
}
_NAMES: Mapping[type[DumpRow], str] = {kind: name for name, kind in ROW_TYPES.items()}
F = TypeVar("F", bound=DumpRow)


@dataclass(frozen=True)
class Row:
    line: int
    table: str
    fields: DumpRow


@dataclass(frozen=True)
class Dump:
    """Rows by table. A missing table is not checked; an empty table is."""

    tables: frozenset[str]
    rows: Mapping[str, list[Row]]

    def has(self, *kinds: type[DumpRow]) -> bool:
        return all(_NAMES[kind] in self.tables for kind in kinds)

    def rows_of(self, kind: type[F]) -> list[tuple[int, F]]:
        """Return the rows of a table, each with its line number."""
        found = self.rows.get(_NAMES[kind], [])
        return [(row.line, row.fields) for row in found if isinstance(row.fields, kind)]
