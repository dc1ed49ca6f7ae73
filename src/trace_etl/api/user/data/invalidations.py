"""Invalidations of datasets."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, model_validator

from trace_etl.api.body import Block, Key, ListReply, Reply, UserRequest
from trace_etl.api.task.events import PARTITION, ROW_RANGE, Filter, Reason, check_invalid_scope
from trace_etl.model.scope import ScopeKind


class InvalidateRequest(UserRequest):
    """A scope to invalidate: a `partition`, or a `row_range` of blocks, narrowed by a `filter`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [PARTITION, ROW_RANGE]})

    partition_key: Key | None = None
    start: Block | None = None
    end: Block | None = None
    filter: Filter | None = None
    reason: Reason = ""
    rebuild: bool = False
    """Rebuild the scope itself first. Consumers process the rewritten data afterwards."""

    @property
    def kind(self) -> ScopeKind:
        return "row_range" if self.partition_key is None else "partition"

    @model_validator(mode="after")
    def _check_scope(self) -> "InvalidateRequest":
        check_invalid_scope(self.kind, self.partition_key, self.start, self.end, self.filter)
        return self


class InvalidateReply(Reply):
    invalidation_id: UUID | None
    """Null if the scope is rebuilt first: the rewrite creates the invalidation."""
    dataset: str
    dataset_version: UUID
    kind: ScopeKind
    partition_key: str | None
    start: int | None
    end: int | None
    rebuilding: int
    """Number of tasks that rebuild the scope."""


class InvalidationItem(Reply):
    invalidation_id: UUID
    dataset: str | None
    dag: str
    job: str
    output: str
    kind: ScopeKind
    partition_key: str | None
    start: int | None
    end: int | None
    filter: dict[str, Any] | None
    reason: str
    is_reorganisation: bool
    """The chain replaced these blocks."""
    made_by: str
    made_at: datetime
    routed_at: datetime | None
    tasks: int
    """Number of downstream tasks that were created for it."""
    processed: int
    """Number of those tasks that completed."""


class InvalidationList(ListReply[InvalidationItem]):
    """One page of invalidations."""
