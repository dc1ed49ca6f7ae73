"""What a worker is handed with a claim: everything an attempt needs."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import StringConstraints

from trace_etl.api.body import Json, Reply, Request
from trace_etl.model.storage import StorageRef


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
    """`PerUpdate`: what this task reads lies behind this cursor: what the job has not read yet,
    with the whole of a partition that it would cut through."""


class InvalidScope(Reply):
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
    invalidation: InvalidScope | None = None
    """Extension: what this task is to make good, if it is the answer to an invalidation."""
    inputs: list[TaskInput] = []
    outputs: list[TaskOutput] = []
    timeout_seconds: int = 3600
    heartbeat_seconds: float = 30.0

    @property
    def follows(self) -> bool:
        """Whether it reads what is new up to a cursor, and no certain blocks."""
        if self.scope is None or self.invalidation is not None:
            return False
        return self.scope.cursor is not None
