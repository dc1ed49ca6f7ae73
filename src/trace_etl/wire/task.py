"""The task lifecycle: claim, heartbeat, complete, events, buffer publish."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from trace_etl.model.storage import StorageRef
from trace_etl.model.task import Fence
from trace_etl.wire.body import Block, Json, Reply, Request, either
from trace_etl.wire.buffers import MOST_BYTES, MOST_ROWS

Attempt = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
Text = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]


# --- what a worker is handed ------------------------------------------------------------------


class JobRef(Reply):
    dag_name: str
    name: str


class Scope(Reply):
    """The part of the inputs this task is about: a partition, or a cursor to read up to."""

    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    after: int | None = None
    """`PerUpdate`: the cursor this job has read up to; what is new lies behind it."""


class Invalid(Reply):
    """Why a task runs again: what changed in one of its inputs. Its scope covers that, and more
    where an output must be replaced whole."""

    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    kind: Literal["partition", "row_range"]
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    filter: dict[str, Any] | None = None
    reason: str = ""


class Storage(Request):
    """A version-addressed storage reference."""

    scheme: Literal["file", "s3"]
    bucket: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00/]*$")]
    prefix: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\x00]*/$")]
    glob: Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00/]*$")] = "*.parquet"

    def ref(self) -> StorageRef:
        return StorageRef(self.scheme, self.bucket, self.prefix, self.glob)


class InputPartition(Reply):
    partition_key: str
    start: int | None = None
    end: int | None = None
    storage_ref: Storage


class TaskInput(Reply):
    """One input, pinned to a dataset version and to the partitions committed at the claim."""

    input_index: int
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    where: dict[str, Any] | None = None
    partitions: list[InputPartition] = []


class TaskOutput(Reply):
    """One output, with the only prefix this attempt may write it under."""

    output_index: int
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    update_strategy: str = "replace"
    unique_key: list[str] = []
    """`append`: the columns that rows are upserted on."""
    columns: list[dict[str, Any]] | None = None
    """Extension: of a buffered dataset, whose rows go through `buffer-publish`: name, type and
    nullable of each."""
    storage_ref: Storage


class TaskPayload(Reply):
    """Everything a worker needs to run an attempt without asking anybody else."""

    task_id: UUID
    attempt: int
    job: JobRef
    operator: str
    config: Json
    scope: Scope | None = None
    invalidation: Invalid | None = None
    """Extension: what this task is to make good, if it is the answer to an invalidation."""
    inputs: list[TaskInput] = []
    outputs: list[TaskOutput] = []
    timeout_seconds: int = 3600
    heartbeat_seconds: float = 30.0


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


class Health(Reply):
    status: Literal["ok"] = "ok"
    version: str


# --- task-scoped endpoints --------------------------------------------------------------------


class Fenced(Request):
    """Every task-scoped call names the attempt and the lease it speaks for."""

    task_id: UUID
    attempt: Attempt
    lease_token: UUID

    def fence(self) -> Fence:
        return Fence(self.task_id, self.attempt, self.lease_token)


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


class Invalidation(Request):
    """Extension: what was published before in this scope is not what it was.

    A `partition`, by its key, or a `row_range`: the rows of some blocks, narrowed by a `filter` of
    the shape of an input's `where`. Whoever read it does that scope again.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [either("dataset_uuid", "dataset")],
            "oneOf": [
                {
                    "properties": {
                        "kind": {"const": "partition"},
                        "partition_key": {"type": "string"},
                        "start": {"type": "null"},
                        "end": {"type": "null"},
                        "filter": {"type": "null"},
                    },
                    "required": ["partition_key"],
                },
                {
                    "properties": {
                        "kind": {"const": "row_range"},
                        "partition_key": {"type": "null"},
                        "start": {"type": "integer"},
                        "end": {"type": "integer"},
                    },
                    "required": ["start", "end"],
                },
            ],
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
    reason: Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00]*$")] = ""
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
    record_count: Annotated[int, Field(ge=0, le=MOST_ROWS)] | None = None
    batch_size_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)] | None = None
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


# --- queue messages ---------------------------------------------------------------------------


class WakeUp(Request):
    """Somebody may want to claim this task. Nothing more."""

    task_id: UUID


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
