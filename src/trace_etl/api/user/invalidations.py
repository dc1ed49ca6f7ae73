"""The user API: what was published and is not what it was."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict, model_validator

from trace_etl.api.body import Block, Key, ListReply, Reply, Request
from trace_etl.api.task.events import PARTITION, ROW_RANGE, Filter, Reason, check_invalid_scope


class InvalidateRequest(Request):
    """A `partition`, by its key, or a `row_range`: blocks, narrowed by a `filter`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [PARTITION, ROW_RANGE]})

    partition_key: Key | None = None
    start: Block | None = None
    end: Block | None = None
    filter: Filter | None = None
    reason: Reason = ""
    rebuild: bool = False
    """Make the scope itself again, too; whoever reads it follows when it is rewritten."""

    @property
    def kind(self) -> Literal["partition", "row_range"]:
        return "row_range" if self.partition_key is None else "partition"

    @model_validator(mode="after")
    def _is_one_scope(self) -> "InvalidateRequest":
        check_invalid_scope(self.kind, self.partition_key, self.start, self.end, self.filter)
        return self


class InvalidateReply(Reply):
    invalidation_id: UUID | None
    """Null: the scope is made again first, and its rewrite will tell."""
    dataset: str
    dataset_version: UUID
    kind: Literal["partition", "row_range"]
    partition_key: str | None
    start: int | None
    end: int | None
    rebuilding: int
    """Tasks that make the scope again."""


class InvalidationItem(Reply):
    invalidation_id: UUID
    dataset: str | None
    dag: str
    job: str
    output: str
    kind: Literal["partition", "row_range"]
    partition_key: str | None
    start: int | None
    end: int | None
    filter: dict[str, Any] | None
    reason: str
    made_by: str
    made_at: datetime
    routed_at: datetime | None
    tasks: int
    """How many tasks it made downstream."""
    processed: int
    """How many of them were completed."""


class InvalidationList(ListReply[InvalidationItem]):
    """One page of invalidations."""
