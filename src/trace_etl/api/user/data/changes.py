"""Changes of a dataset, from its delivery log."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import Reply


class DatasetChange(Reply):
    """One change. Its scope is a partition, a range, or the whole dataset if neither is given."""

    cursor: str
    """The position after this change: give it as `since` to continue."""
    kind: Literal["published", "replaced", "appended", "invalidated", "version"]
    reason: str
    dataset_uuid: UUID
    dataset_version: UUID | None
    """For `version`: the generation that readers see from now on."""
    partition_key: str | None
    start: int | None
    """The first block or cursor. Null with an `end`: everything up to it."""
    end: int | None
    old_hash: str | None
    """The content hash of the replaced partition; null if several were replaced, or it is not known."""
    new_hash: str | None
    row_count: int | None
    task_id: UUID | None
    attempt: int | None
    changed_at: datetime


class DatasetChanges(Reply):
    dataset: str
    dataset_version: UUID | None
    """The generation that readers see after the last change of the log."""
    items: list[DatasetChange]
    cursor: str
    """The position after these changes."""
    more: bool
    """Whether there are further changes now."""
