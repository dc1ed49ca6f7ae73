"""The task lifecycle: claim, heartbeat, complete, events, buffer publish."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from trace_etl.api.body import (
    Block,
    Count,
    DatasetName,
    Fenced,
    Json,
    Key,
    Reply,
    Request,
    Text,
    WorkerId,
    either,
)
from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from trace_etl.api.task.events import Event, Invalidation
from trace_etl.api.task.payload import Storage, TaskPayload
from trace_etl.model.task import Fence

# --- worker endpoints -------------------------------------------------------------------------


class Claim(Request):
    task_id: UUID
    worker_id: WorkerId


class ClaimMany(Request):
    """Extension: claim up to `max_tasks` ready tasks of a runtime in one call."""

    runtime: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
    worker_id: WorkerId
    max_tasks: Annotated[int, Field(ge=1, le=100)]


class Claimed(Reply):
    status: Literal["Claimed"] = "Claimed"
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    task: TaskPayload

    def fence(self) -> Fence:
        return Fence(self.task.task_id, self.attempt, self.lease_token)


class NotClaimed(Reply):
    status: Literal["NotClaimed"] = "NotClaimed"
    reason: Literal["AlreadyRunning", "Completed", "Canceled", "NotFound", "NotReady"]


class ClaimedMany(Reply):
    claimed: list[Claimed]


class Fetched(Reply):
    """The task as it stands. `status: Canceled` tells a worker to stop and to report it."""

    task_id: UUID
    status: Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
    attempt: int
    cancel_requested: bool
    task: TaskPayload


class Jwk(Reply):
    """A public ES256 key."""

    kty: Literal["EC"] = "EC"
    crv: Literal["P-256"] = "P-256"
    use: Literal["sig"] = "sig"
    alg: Literal["ES256"] = "ES256"
    kid: str
    x: str
    y: str


class Jwks(Reply):
    """Every key whose tokens may still be alive."""

    keys: list[Jwk]


# --- task-scoped endpoints --------------------------------------------------------------------


class Heartbeat(Fenced):
    pass


class HeartbeatAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    lease_expires_at: datetime
    cancel_requested: bool = False
    hold: bool = False
    """Extension: the job is paused. Finish what is under way; whoever never ends stays alive and
    announces nothing more until this is false again."""
    capability_token: str | None = None
    """A fresh token, when the old one has used most of its life."""


class Output(Request):
    """What was materialised. `partition_key` and `byte_count` extend the specification."""

    output_index: Annotated[int, Field(ge=0, le=10_000)] | None = None
    dataset_uuid: UUID
    dataset_version: UUID | None = None
    location: Annotated[str, StringConstraints(max_length=2048, pattern=r"^[^\x00]*$")]
    cursor: Count | None = None
    partition_key: Key | None = None
    row_count: Count | None = None
    byte_count: Count | None = None


class Published(Request):
    """A replace-style Parquet output whose prefix becomes the partition's pointer."""

    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: Storage
    config_hash: Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")] | None = (
        None
    )
    range_start: Block | None = None
    range_end: Block | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> "Published":
        if (self.range_start is None) != (self.range_end is None):
            raise ValueError("`range_start` and `range_end` go together")
        if (
            self.range_start is not None
            and self.range_end is not None
            and self.range_end < self.range_start
        ):
            raise ValueError("`range_end` must not be before `range_start`")
        return self

    @property
    def partition_key(self) -> str:
        return "all" if self.range_start is None else f"{self.range_start}-{self.range_end}"


def _at_most(items: int) -> Any:
    # A default of `[]` would be copied, deeply, for every call.
    return Field(default_factory=list, max_length=items, json_schema_extra={"default": []})


class Complete(Fenced):
    status: Literal["Completed", "Failed", "Canceled"]
    events: list[Event] = _at_most(5_000)
    outputs: list[Output] = _at_most(1_000)
    datasets_published: list[Published] = _at_most(1_000)
    invalidations: list[Invalidation] = _at_most(1_000)
    """Extension: what this attempt rewrote, or found to be wrong, in its own outputs. A partition
    that is published a second time needs no word: the Dispatcher sees it."""
    error_message: Text | None = None
    error_code: Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9_]*$")] | None = (
        None
    )
    """Extension: the stable code of the error behind `error_message`."""
    retryable: bool = True
    """Extension: a `Failed` attempt that must not be tried again says false."""

    @model_validator(mode="after")
    def _only_success_publishes(self) -> "Complete":
        said = self.events or self.outputs or self.datasets_published or self.invalidations
        if self.status != "Completed" and said:
            raise ValueError(
                "only `Completed` may carry `events`, `outputs`, `datasets_published` or "
                "`invalidations`"
            )
        return self


class CompleteWithToken(Complete):
    """A completion that brings its own capability token."""

    capability_token: Annotated[
        str, StringConstraints(min_length=1, max_length=65536, pattern=r"^[!-~]*$")
    ]


class CompleteMany(Request):
    """Extension: a worker that runs many small tasks reports several in one call."""

    completions: Annotated[list[CompleteWithToken], Field(min_length=1, max_length=100)]


class CompleteAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    task_status: Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


class CompleteRefused(Reply):
    """What the single call would have been refused with."""

    status: Literal["Refused"] = "Refused"
    problem: Json


class CompletedMany(Reply):
    """One answer for each completion, in their order; one that is refused spoils no other."""

    results: list[CompleteAccepted | CompleteRefused]


class BufferPublish(Fenced):
    """The union of both published shapes: target by uuid, or by name as `dedupe_scope`."""

    model_config = ConfigDict(json_schema_extra=either("dataset_uuid", "dedupe_scope"))

    batch_uri: Annotated[
        str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[a-z0-9]+://[^\x00]+$")
    ]
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None
    dedupe_scope: DatasetName | None = None
    record_count: Annotated[int, Field(ge=0, le=MAX_BATCH_ROWS)] | None = None
    batch_size_bytes: Annotated[int, Field(ge=0, le=MAX_BATCH_BYTES)] | None = None
    content_type: Annotated[str, StringConstraints(max_length=128, pattern=r"^[^\x00]*$")] = (
        "application/jsonl"
    )

    @model_validator(mode="after")
    def _names_one_dataset(self) -> "BufferPublish":
        if (self.dataset_uuid is None) == (self.dedupe_scope is None):
            raise ValueError("name the dataset by `dataset_uuid` or by `dedupe_scope`, one of them")
        return self


class BufferPublishAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    publish_id: UUID


# --- what the pipeline hands back to the worker -----------------------------------------------


class TaskResult(Request):
    """An operator's work, in the shapes of the completion call."""

    outputs: list[Output] = []
    datasets_published: list[Published] = []
    events: list[Event] = []
    invalidations: list[Invalidation] = []


# --- the marker of a finished write -------------------------------------------------------------


class SuccessFile(Reply):
    name: str
    rows: int
    bytes: int


class SuccessMarker(Reply):
    """The content of `_SUCCESS`: what was written, counted by the write itself."""

    files: list[SuccessFile]
    rows: int
    bytes: int
    schema_: list[dict[str, str]] = Field(default=[], alias="schema")
