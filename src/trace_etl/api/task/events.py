"""Events and invalidations of datasets that a task reports."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from trace_etl.api.body import (
    Block,
    DatasetName,
    Fenced,
    Json,
    Key,
    Reply,
    Request,
    check_one_given,
    check_range,
    either,
)
from trace_etl.model.scope import Range, ScopeKind


class Event(Request):
    """A change of a dataset version: a new cursor, or a new partition.

    The `partition_key` of a block range is `{start}-{end}`, both inclusive.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [either("dataset_uuid", "dataset"), either("cursor", "partition_key")],
            "dependentRequired": {"start": ["end", "partition_key"], "end": ["start"]},
        }
    )

    dataset_uuid: UUID | None = None
    dataset: DatasetName | None = None
    dataset_version: UUID | None = None
    cursor: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    partition_key: Key | None = None
    start: Block | None = None
    end: Block | None = None

    @model_validator(mode="after")
    def _check_dataset_and_scope(self) -> "Event":
        check_one_given(dataset_uuid=self.dataset_uuid, dataset=self.dataset)
        check_one_given(cursor=self.cursor, partition_key=self.partition_key)
        check_range(self.start, self.end)
        if self.start is not None and self.partition_key is None:
            raise ValueError("`start` and `end` need a `partition_key`")
        if self.start is not None and self.partition_key != f"{self.start}-{self.end}":
            raise ValueError("`partition_key` of a block range must be `{start}-{end}`")
        return self

    @property
    def blocks(self) -> Range | None:
        """The block range, from its bounds or from its key."""
        if self.start is not None and self.end is not None:
            return Range(self.start, self.end)
        return Range.from_key(self.partition_key) if self.partition_key else None

    @property
    def scope_key(self) -> str:
        return f"c:{self.cursor}" if self.partition_key is None else f"p:{self.partition_key}"


Scalar = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")] | int | float | bool
Filter = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)],
        Scalar | Annotated[list[Scalar], Field(min_length=1, max_length=1_000)],
    ],
    Field(min_length=1, max_length=64, json_schema_extra={"additionalProperties": False}),
]
Reason = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00]*$")]
_NULL: Json = {"type": "null"}
_BLOCK: Json = {"type": "integer"}
# JSON schemas of the two kinds of invalid scopes.
PARTITION: Json = {
    "properties": {
        "partition_key": {"type": "string"},
        "start": _NULL,
        "end": _NULL,
        "filter": _NULL,
    },
    "required": ["partition_key"],
}
ROW_RANGE: Json = {
    "properties": {"partition_key": _NULL, "start": _BLOCK, "end": _BLOCK},
    "required": ["start", "end"],
}


def _add_kind(kind: str, scope: Json) -> Json:
    return {**scope, "properties": {"kind": {"const": kind}, **scope["properties"]}}


class Invalidation(Request):
    """Extension: data that was published in this scope is wrong or was rewritten.

    The scope is a `partition`, named by its key, or a `row_range`: the rows of a block range, narrowed
    by a `filter` with the syntax of an input's `where`. Consumers process the scope again.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [either("dataset_uuid", "dataset")],
            "oneOf": [_add_kind("partition", PARTITION), _add_kind("row_range", ROW_RANGE)],
        }
    )

    kind: ScopeKind
    dataset_uuid: UUID | None = None
    dataset: DatasetName | None = None
    dataset_version: UUID | None = None
    partition_key: Key | None = None
    start: Block | None = None
    end: Block | None = None
    filter: Filter | None = None
    reason: Reason = ""
    is_reorganisation: bool = False
    """The chain replaced these blocks, and the rows were written again. A reported defect never is one."""
    key: Key | None = Field(
        default=None,
        description="Idempotency key. A repeated key of the same task is the same invalidation, even "
        "if other fields differ. Always send a key: without one, identical bodies of "
        "`/v1/task/events` count once per attempt, so a second change of the same rows with the "
        "same body would be ignored.",
    )

    @model_validator(mode="after")
    def _check_dataset_and_scope(self) -> "Invalidation":
        check_one_given(dataset_uuid=self.dataset_uuid, dataset=self.dataset)
        check_invalid_scope(self.kind, self.partition_key, self.start, self.end, self.filter)
        return self


def check_invalid_scope(
    kind: str, partition_key: str | None, start: int | None, end: int | None, rows: object
) -> None:
    """Check that the fields form one scope of this kind. Raises ValueError."""
    check_range(start, end)
    if kind == "row_range" and (start is None or partition_key is not None):
        raise ValueError("a `row_range` needs `start` and `end`, and no `partition_key`")
    if kind == "partition" and partition_key is None:
        raise ValueError("a `partition` needs a `partition_key`")
    if kind == "partition" and start is not None and partition_key != f"{start}-{end}":
        raise ValueError("`partition_key` of a block range must be `{start}-{end}`")
    if kind == "partition" and rows is not None:
        raise ValueError("`filter` is allowed only with a `row_range`")


MAX_BLOCK_TIME = 253_402_300_799
"""The end of the year 9999, in seconds since 1970."""
BlockTime = Annotated[int, Field(ge=0, le=MAX_BLOCK_TIME)]


class ChainHead(Request):
    """Extension: the head of the chain that a task follows, and how far the task is."""

    head: Block
    head_time: BlockTime
    """Seconds since 1970, from the header of the block."""
    position: Block | None = None
    """The last block that the task has written."""
    position_time: BlockTime | None = None


class Events(Fenced):
    events: Annotated[list[Event], Field(max_length=5_000)] = []
    invalidations: Annotated[list[Invalidation], Field(max_length=1_000)] = []
    """Extension: data of its outputs that this attempt rewrote or found to be wrong."""
    chain_head: ChainHead | None = None


class EventsAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    accepted: int
    """Number of new events; the others were accepted before."""
