"""What occupies object storage, and the deletion of what nothing uses."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from trace_etl.api.body import ListReply, Reply

StorageKind = Literal[
    "current",
    "building",
    "previous",
    "retired",
    "superseded",
    "uncommitted",
    "scratch",
    "exports",
    "batches",
]
KeptBy = Literal["attempt", "pin", "lineage", "delivery", "layout"]


class StorageUsage(Reply):
    """The storage of one kind that a dataset occupies."""

    dataset: str | None
    """Null for scratch and exports, which belong to tasks."""
    kind: StorageKind
    prefixes: int
    objects: int
    bytes: int
    due_prefixes: int
    """Prefixes that the next sweep deletes."""
    due_bytes: int
    kept_prefixes: int
    """Prefixes that a task or a delivery still needs, whatever their age."""
    next_sweep_at: datetime | None
    """When more becomes due."""


class ForeignObjects(Reply):
    """Objects that the platform did not write. They are never deleted."""

    objects: int
    bytes: int
    listed_at: datetime | None = None
    """The oldest listing that the counts come from; null if a listing is missing."""


class StorageRetentions(Reply):
    """Seconds that each kind is kept after it became unused."""

    retired: float
    superseded: float
    uncommitted: float
    scratch: float
    exports: float
    batches: float


class StorageReply(Reply):
    """The storage of an organisation, by dataset and kind."""

    items: list[StorageUsage]
    foreign: ForeignObjects = Field(description="Objects that the platform did not write.")
    retention_seconds: StorageRetentions
    sweeps: bool
    """Whether the Dispatcher sweeps automatically."""


class UnusedStorage(Reply):
    """A prefix that nothing uses, or the artifact of a batch."""

    key: str
    kind: StorageKind
    dataset: str | None
    objects: int | None
    """Null until it is measured."""
    bytes: int | None
    unused_since: datetime
    sweep_at: datetime
    kept_by: KeptBy | None
    """What keeps it after `sweep_at`: null if nothing does."""


class UnusedList(ListReply[UnusedStorage]):
    """One page of unused storage."""


class SweepReply(Reply):
    """What a sweep deleted."""

    prefixes: int
    batches: int
    objects: int
    bytes: int
    failures: int
    """Prefixes and batches that the object store did not delete. They are tried again."""
    is_complete: bool
    """False if the sweep stopped after its time limit: call it again."""
