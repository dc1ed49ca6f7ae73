"""The task payload: everything a worker needs to run an attempt."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import StringConstraints

from trace_etl.api.body import Json, Reply, Request
from trace_etl.api.task.checks import TaskCheck
from trace_etl.model.dag import TimePartition
from trace_etl.model.scope import Range, ScopeKind
from trace_etl.model.storage import StorageRef

WHOLE = "all"  # the partition key of an output that is not split


TIME_SECONDS = {"day": 86_400, "hour": 3_600}
TIME_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
"""The keys of time partitions, in UTC."""


class JobRef(Reply):
    dag_name: str
    name: str


class Scope(Reply):
    """The part of the inputs that a task processes: a partition, or everything up to a cursor."""

    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    after: int | None = None
    """`PerUpdate`: the task reads everything after this cursor, which the job has not read yet. The
    cursor is never inside a partition, so that whole partitions are read."""

    @property
    def blocks(self) -> Range | None:
        """The blocks of the scope: its block range, or the new blocks up to its cursor."""
        if self.start is not None and self.end is not None:
            return Range(self.start, self.end)
        if self.cursor is not None:
            return Range(0 if self.after is None else self.after + 1, self.cursor)
        return None

    @property
    def output_key(self) -> str:
        """The partition key of an output with this scope. A task with a cursor writes a partition too."""
        return self.partition_key or (self.blocks.key if self.blocks else WHOLE)


class TaskParameters(Reply):
    """Values of the event that started a task. SQL reads them as `:scheduled_time` and `:payload`."""

    scheduled_time: datetime | None = None
    """The time of a tick."""
    payload: Any = None
    """The JSON of a manual trigger or of a webhook delivery."""
    recheck: bool = False
    """The task reads provisional blocks again. It waits until they are final."""


class InvalidScope(Reply):
    """The invalid part of an input that makes a task run again.

    The scope of the task covers this range. It is larger if only a whole output can be replaced.
    """

    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    kind: ScopeKind
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    filter: dict[str, Any] | None = None
    reason: str = ""
    is_reorganisation: bool = False


class Storage(Request):
    """A version-addressed storage reference."""

    scheme: Literal["file", "s3"]
    bucket: Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00/]+(?:/[^\x00/]+)*$")]
    """The root of the organisation: a bucket, or a bucket and a prefix in it."""
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
    """One input, pinned to a dataset version and to the partitions that existed at the claim."""

    input_index: int
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    where: dict[str, Any] | None = None
    time_column: str | None = None
    """Extension: the column with the time of a row, in a job with time partitions."""
    partitions: list[InputPartition] = []


class TaskOutput(Reply):
    """One output, with the storage prefix that only this attempt may write.

    The prefix of an output in a table of Postgres data stays empty, and its token does not grant it.
    """

    output_index: int
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    update_strategy: str = "replace"
    unique_key: list[str] = []
    """`append`: the key columns of the upsert."""
    columns: list[dict[str, Any]] | None = None
    """Extension: name, type and nullable of each column of a buffered dataset, whose rows are sent
    with `buffer-publish`; null for other datasets."""
    storage_ref: Storage


class TaskFunction(Reply):
    """The user-defined function that a task runs."""

    bundle: str
    sha256: str
    handler: str
    bundle_url: str
    """Where the worker reads the bundle."""


class TaskPayload(Reply):
    """Everything a worker needs to run an attempt, without another call."""

    task_id: UUID
    attempt: int
    org_id: UUID | None = None
    """Extension: the organisation of the task."""
    job: JobRef
    operator: str
    runtime: str = ""
    """Extension: the runtime of the job. Its entry in the registry has the limits of the task."""
    config: Json
    scope: Scope | None = None
    parameters: TaskParameters | None = None
    """Extension: what the event that started the task passes to it; null for changes of data."""
    partition_by: TimePartition | None = None
    """Extension: the job has a partition per day or hour. A task that is no refresh reports which
    partitions the rows of its scope belong to, and writes nothing."""
    is_refresh: bool = False
    """Extension: the task makes its partition from everything that its inputs hold."""
    previous: InputPartition | None = None
    """Extension: the committed output of a job over whole datasets, which this task replaces."""
    udf: TaskFunction | None = None
    """Extension: the function of the operator `udf`."""
    secrets: list[str] = []
    """Extension: the names of the secrets that a platform operator receives. The worker knows the values."""
    invalidation: InvalidScope | None = None
    """Extension: the invalidation that this task repairs; null for other tasks."""
    inputs: list[TaskInput] = []
    outputs: list[TaskOutput] = []
    checks: list[TaskCheck] = []
    """Extension: the data checks of the outputs. A completion must report the result of each."""
    scratch_ref: Storage | None = None
    """The prefix for temporary objects of this attempt. It is deleted after its retention."""
    export_ref: Storage | None = None
    """The prefix for results that this attempt exports for people."""
    timeout_seconds: int = 3600
    heartbeat_seconds: float = 30.0

    @property
    def time_range(self) -> tuple[datetime, datetime] | None:
        """The day or hour that the task makes: its start, and the start of the next one."""
        key = self.scope.partition_key if self.scope else None
        if not self.is_refresh or self.partition_by is None or key is None:
            return None
        start = datetime.strptime(key, TIME_FORMATS[self.partition_by]).replace(tzinfo=UTC)
        return start, start + timedelta(seconds=TIME_SECONDS[self.partition_by])

    @property
    def follows(self) -> bool:
        """Whether the task reads everything new up to a cursor instead of a fixed block range."""
        if self.scope is None or self.invalidation is not None:
            return False
        return self.scope.cursor is not None
