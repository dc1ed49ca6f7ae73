"""What a task tells of datasets: events, and invalidations of what it rewrote or doubts."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from trace_etl.api.body import Block, DatasetName, Fenced, Json, Key, Reply, Request, either


class Event(Request):
    """This dataset version changed in this scope: a cursor, or a partition.

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
    def _names_one_dataset_and_one_scope(self) -> "Event":
        if (self.dataset_uuid is None) == (self.dataset is None):
            raise ValueError("name the dataset by `dataset_uuid` or by `dataset`, one of them")
        if (self.cursor is None) == (self.partition_key is None):
            raise ValueError("give a `cursor` or a `partition_key`, one of them")
        if (self.start is None) != (self.end is None):
            raise ValueError("`start` and `end` go together")
        if self.start is not None and self.partition_key is None:
            raise ValueError("`start` and `end` belong to a `partition_key`")
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError("`end` must not be before `start`")
        if self.start is not None and self.partition_key != f"{self.start}-{self.end}":
            raise ValueError("`partition_key` of a block range is `{start}-{end}`")
        return self

    @property
    def scope_key(self) -> str:
        return f"c:{self.cursor}" if self.partition_key is None else f"p:{self.partition_key}"


Scalar = str | int | float | bool
Filter = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)],
        Scalar | Annotated[list[Scalar], Field(min_length=1, max_length=1_000)],
    ],
    Field(min_length=1, max_length=64, json_schema_extra={"additionalProperties": False}),
]
Reason = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00]*$")]
_NOT: Json = {"type": "null"}
_BLOCK: Json = {"type": "integer"}
# JSON schema: the two scopes that something invalid can have.
PARTITION: Json = {
    "properties": {"partition_key": {"type": "string"}, "start": _NOT, "end": _NOT, "filter": _NOT},
    "required": ["partition_key"],
}
ROW_RANGE: Json = {
    "properties": {"partition_key": _NOT, "start": _BLOCK, "end": _BLOCK},
    "required": ["start", "end"],
}


def _of_kind(kind: str, scope: Json) -> Json:
    return {**scope, "properties": {"kind": {"const": kind}, **scope["properties"]}}


class Invalidation(Request):
    """Extension: what was published before in this scope is not what it was.

    A `partition`, by its key, or a `row_range`: the rows of some blocks, narrowed by a `filter` of
    the shape of an input's `where`. Whoever read it does that scope again.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [either("dataset_uuid", "dataset")],
            "oneOf": [_of_kind("partition", PARTITION), _of_kind("row_range", ROW_RANGE)],
        }
    )

    kind: Literal["partition", "row_range"]
    dataset_uuid: UUID | None = None
    dataset: DatasetName | None = None
    dataset_version: UUID | None = None
    partition_key: Key | None = None
    start: Block | None = None
    end: Block | None = None
    filter: Filter | None = None
    reason: Reason = ""
    key: Key | None = Field(
        default=None,
        description="The same key of the same task again is the same invalidation, whatever else "
        "it says. Send one. Without a key, calls to `/v1/task/events` with the very same body "
        "count once for each attempt: a second change of the same rows that is told in the same "
        "words as the first goes unheard.",
    )

    @model_validator(mode="after")
    def _is_one_scope_of_one_dataset(self) -> "Invalidation":
        if (self.dataset_uuid is None) == (self.dataset is None):
            raise ValueError("name the dataset by `dataset_uuid` or by `dataset`, one of them")
        check_invalid_scope(self.kind, self.partition_key, self.start, self.end, self.filter)
        return self


def check_invalid_scope(
    kind: str, partition_key: str | None, start: int | None, end: int | None, rows: object
) -> None:
    """Raises ValueError when the fields do not make one scope."""
    if (start is None) != (end is None):
        raise ValueError("`start` and `end` go together")
    if start is not None and end is not None and end < start:
        raise ValueError("`end` must not be before `start`")
    if kind == "row_range" and (start is None or partition_key is not None):
        raise ValueError("a `row_range` has `start` and `end`, and no `partition_key`")
    if kind == "partition" and partition_key is None:
        raise ValueError("a `partition` has a `partition_key`")
    if kind == "partition" and start is not None and partition_key != f"{start}-{end}":
        raise ValueError("`partition_key` of a block range is `{start}-{end}`")
    if kind == "partition" and rows is not None:
        raise ValueError("`filter` goes with a `row_range`")


class Events(Fenced):
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"events": {"minItems": 1}}, "required": ["events"]},
                {"properties": {"invalidations": {"minItems": 1}}, "required": ["invalidations"]},
            ]
        }
    )

    events: Annotated[list[Event], Field(max_length=5_000)] = []
    invalidations: Annotated[list[Invalidation], Field(max_length=1_000)] = []
    """Extension: what this attempt rewrote, or found to be wrong, in its own outputs."""

    @model_validator(mode="after")
    def _says_something(self) -> "Events":
        if not self.events and not self.invalidations:
            raise ValueError("give `events` or `invalidations`, at least one")
        return self


class EventsAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    accepted: int
    """How many events were new; the rest had been accepted before."""
