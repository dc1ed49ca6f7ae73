"""Bodies of the task lifecycle: claim, heartbeat, complete, buffer publish."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
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
    check_one_given,
    check_range,
    either,
)
from trace_etl.api.task.buffers import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from trace_etl.api.task.checks import CheckResult
from trace_etl.api.task.events import Event, Invalidation
from trace_etl.api.task.payload import Scope, Storage, TaskPayload
from trace_etl.api.task.verification import VerifiedRange
from trace_etl.model.scope import Range
from trace_etl.model.task import Fence, Isolation, ReportedStatus, TaskStatus

# --- worker endpoints -------------------------------------------------------------------------


class Claim(Request):
    task_id: UUID
    worker_id: WorkerId


class ClaimMany(Request):
    """Extension: claim several tasks in one call: ready ones of a runtime, or those with these ids."""

    model_config = ConfigDict(json_schema_extra=either("runtime", "task_ids"))

    runtime: (
        Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00]*$")] | None
    ) = None
    worker_id: WorkerId
    max_tasks: Annotated[int, Field(ge=1, le=100)] = 1
    """How many ready tasks of the runtime."""
    task_ids: Annotated[list[UUID], Field(min_length=1, max_length=100)] | None = None
    """The tasks to claim. Those that may not run now are left out of the answer."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.runtime is None) == (self.task_ids is None):
            raise ValueError("either `runtime` or `task_ids` is required, and only one of them")
        return self


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
    """The current state of a task. If `status` is `Canceled`, the worker must stop and report `Canceled`."""

    task_id: UUID
    status: TaskStatus
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
    """Every key whose tokens may still be valid."""

    keys: list[Jwk]


# --- task-scoped endpoints --------------------------------------------------------------------


class Heartbeat(Fenced):
    isolation: Isolation | None = None
    """Extension: how the untrusted code of the attempt is isolated, from the start of its sandbox. It is
    recorded with the attempt, however that ends."""


class HeartbeatAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    lease_expires_at: datetime
    cancel_requested: bool = False
    hold: bool = False
    """Extension: the job is paused. A task finishes its current work. A task that never ends keeps
    running, but reports no events until this is false again."""
    capability_token: str | None = None
    """A new token, sent when most of the old token's lifetime has passed."""


class Output(Request):
    """An output that the attempt wrote. `partition_key` and `byte_count` extend the specification."""

    output_index: Annotated[int, Field(ge=0, le=10_000)] | None = None
    dataset_uuid: UUID
    dataset_version: UUID | None = None
    location: Annotated[str, StringConstraints(max_length=2048, pattern=r"^[^\x00]*$")]
    cursor: Count | None = None
    partition_key: Key | None = None
    row_count: Count | None = None
    byte_count: Count | None = None


class Published(Request):
    """A Parquet output with `replace` strategy. Its prefix becomes the current data of the partition.

    Without a range and a `partition_key`, the partition is the scope of the task.
    """

    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: Storage
    config_hash: Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")] | None = (
        None
    )
    range_start: Block | None = None
    range_end: Block | None = None
    partition_key: Key | None = None
    """Extension: a key of the form `{start}-{end}` names that block range. Any other key names a partition
    without a block range."""

    @model_validator(mode="after")
    def _check_scope(self) -> "Published":
        check_range(self.range_start, self.range_end, prefix="range_")
        named = f"{self.range_start}-{self.range_end}"
        if self.range_start is not None and self.partition_key not in (None, named):
            raise ValueError("`partition_key` of a block range must be `{range_start}-{range_end}`")
        return self

    def partition(self, scope: Scope | None) -> tuple[str, Range | None] | None:
        """Return the key and blocks of the partition; None if they depend on an unknown task scope."""
        if self.range_start is not None and self.range_end is not None:
            span = Range(self.range_start, self.range_end)
            return span.key, span
        if self.partition_key is not None:
            return self.partition_key, Range.from_key(self.partition_key)
        return None if scope is None else (scope.output_key, scope.blocks)


def _list_field(max_items: int) -> Any:
    # A factory: pydantic would copy a default of `[]` deeply for every call.
    return Field(default_factory=list, max_length=max_items, json_schema_extra={"default": []})


class MappedPartition(Request):
    """The days or hours that the rows of an input partition belong to."""

    dataset_version: UUID
    partition_key: Key
    time_keys: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}(T\d{2})?$")]],
        Field(max_length=10_000),
    ]


class Complete(Fenced):
    status: ReportedStatus
    events: list[Event] = _list_field(5_000)
    outputs: list[Output] = _list_field(1_000)
    datasets_published: list[Published] = _list_field(1_000)
    invalidations: list[Invalidation] = _list_field(1_000)
    """Extension: data of its outputs that this attempt rewrote or found to be wrong. A partition that
    is published again needs no invalidation: the Dispatcher records it."""
    mapped_partitions: list[MappedPartition] = _list_field(10_000)
    """Extension: what a task of a job with time partitions found in its scope."""
    checks: list[CheckResult] = _list_field(1_000)
    """Extension: the results of the job's data checks. A `Failed` attempt reports those that blocked it."""
    error_message: Text | None = None
    error_code: Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9_]*$")] | None = (
        None
    )
    """Extension: the stable code of the error behind `error_message`."""
    retryable: bool = True
    """Extension: false if a `Failed` attempt must not be retried."""
    premature: bool = False
    """Extension: true if a `Failed` attempt could not begin yet, for example because its blocks are not
    final. It is retried and does not count as one of the job's `max_attempts`."""
    isolation: Isolation | None = None
    """Extension: how the untrusted code of the attempt was isolated; null for code of the platform, and
    if the sandbox did not start."""
    unreachable: bool = False
    """Extension: a `Failed` attempt found an endpoint that did not answer. It is retried for as long as
    the job allows, and does not count as an attempt."""

    @model_validator(mode="after")
    def _check_content(self) -> "Complete":
        content = (
            self.events
            or self.outputs
            or self.datasets_published
            or self.invalidations
            or self.mapped_partitions
        )
        if self.status != "Completed" and content:
            raise ValueError(
                "only `Completed` may carry `events`, `outputs`, `datasets_published` or "
                "`invalidations`"
            )
        if self.status == "Canceled" and self.checks:
            raise ValueError("a `Canceled` attempt may not carry `checks`")
        return self


class CompleteWithToken(Complete):
    """A completion with its capability token in the body."""

    capability_token: Annotated[
        str, StringConstraints(min_length=1, max_length=65536, pattern=r"^[!-~]*$")
    ]


class CompleteMany(Request):
    """Extension: several completions in one call, for workers that run many small tasks."""

    completions: Annotated[list[CompleteWithToken], Field(min_length=1, max_length=100)]


class CompleteAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    task_status: TaskStatus


class CompleteRefused(Reply):
    """A refused completion, with the problem document of the single call."""

    status: Literal["Refused"] = "Refused"
    problem: Json


class CompletedMany(Reply):
    """One result per completion, in the same order. A refusal does not affect the others."""

    results: list[CompleteAccepted | CompleteRefused]


class LogOutput(Fenced):
    """Extension: a part of the output of an attempt, for people. A repeated part changes nothing."""

    position: Annotated[int, Field(ge=0, le=2**31 - 1)]
    """The number of bytes before the part."""
    text: Annotated[str, StringConstraints(max_length=131_072, pattern=r"^[^\x00]*$")]


class LogAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"


class BufferPublish(Fenced):
    """A batch for a buffered dataset, named by `dataset_uuid` or by its published name (`dedupe_scope`)."""

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
    def _check_dataset(self) -> "BufferPublish":
        check_one_given(dataset_uuid=self.dataset_uuid, dedupe_scope=self.dedupe_scope)
        return self


class BufferPublishAccepted(Reply):
    status: Literal["Accepted"] = "Accepted"
    publish_id: UUID


# --- result of an operator --------------------------------------------------------------------


class TaskResult(Request):
    """The result of an operator, with the fields of a completion."""

    outputs: list[Output] = []
    datasets_published: list[Published] = []
    events: list[Event] = []
    invalidations: list[Invalidation] = []
    mapped_partitions: list["MappedPartition"] = []
    checks: list[CheckResult] = []


# --- success marker ---------------------------------------------------------------------------


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
RowsHash = Annotated[str, StringConstraints(pattern=r"^rows\.v[0-9]{1,4}:[0-9a-f]{64}$")]


class SuccessFile(Reply):
    name: str
    rows: int
    bytes: int
    sha256: Sha256 | None = None
    """SHA-256 of the bytes of the file."""


class RowSumOfColumns(Reply):
    """The row sum of the rows that were copied from files with these columns, without other columns."""

    columns: list[str]
    row_sum: Sha256


class SuccessMarker(Reply):
    """The content of `_SUCCESS`: the written files, with their rows and bytes."""

    files: list[SuccessFile]
    rows: int
    bytes: int
    schema_: list[dict[str, str]] = Field(default=[], alias="schema")
    verified: VerifiedRange | None = None
    """What was verified of the blocks, if the rows were read from a chain."""
    content_hash: RowsHash | None = None
    """Hash of the rows of all files, in any order."""
    row_sum: Sha256 | None = None
    """The sum of the hashes of the rows. The row sum of a union is the sum of the parts' row sums."""
    row_sums: list[RowSumOfColumns] | None = None
    """The row sums by the columns of the files that the rows were copied from, if some lack columns."""
    made_from: list[str] | None = None
    """Digests of the input partitions, if the rows are aggregates to which others can be added."""
