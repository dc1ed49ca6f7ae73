"""A parsed DAG: its jobs, their inputs and outputs, and its published datasets."""

from dataclasses import dataclass, field
from typing import Any, Literal

SourceKind = Literal["manual", "cron", "webhook", "always_on"]
Activation = Literal["source", "reactive"]
Priority = Literal["normal", "bulk"]
TimePartition = Literal["day", "hour"]
OnFailure = Literal["block", "warn", "block_consumers"]
"""What a failed data check does: nothing is committed, only the result is stored, or consumers wait."""
JobChange = Literal["added", "changed", "removed", "unchanged"]
"""The difference between a deployed job and the job in a file."""
JobAction = Literal["keep", "adopt", "start", "build", "retire"]
"""What a deploy does with a job."""


@dataclass(frozen=True)
class Source:
    """The source of a job."""

    kind: SourceKind
    schedule: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class JobInput:
    """An input of a job: the output of another job, or a published dataset."""

    name: str
    job: str | None = None
    output: str | None = None
    dataset: str | None = None
    where: dict[str, Any] | None = None
    trigger: str | None = None
    """`always`, `only` or `never`, if the file says so."""
    time: str | None = None
    """The column with the time of a row, for a job with time partitions."""
    reads: bool = True
    """Whether the job reads the rows of the input. False: the input only starts the job."""
    starts: bool = True
    """Whether changes of the input start the job."""


@dataclass(frozen=True)
class Bootstrap:
    """Blocks that the platform requests when a source is first deployed, `chunk` blocks per request."""

    start: int
    end: int
    chunk: int | None = None


@dataclass(frozen=True)
class Udf:
    """A user-defined function: an immutable bundle, identified by its hash."""

    bundle: str
    sha256: str
    handler: str


@dataclass(frozen=True)
class Retry:
    """Delays between attempts in seconds. None: the settings of the Dispatcher."""

    delay: int | None = None
    max_delay: int | None = None
    unreachable: int | None = None
    """How long to wait for an endpoint that does not answer."""


@dataclass(frozen=True)
class Check:
    """A rule for the rows of an output, checked before they are committed."""

    name: str
    output: str
    kind: str
    """`condition`, `unique`, `not_null`, `rows`, `freshness` or `references`."""
    rule: dict[str, Any]
    """The settings of the kind."""
    on_failure: str = "block"
    """`block`, `warn` or `block_consumers`."""
    consumers: tuple[str, ...] = ()
    """With `block_consumers`: the jobs that do not read a partition whose check failed."""
    key: tuple[str, ...] = ()
    """The columns that identify failing rows. Empty: chosen when the check runs."""


@dataclass(frozen=True)
class Job:
    """A job of a DAG, with the defaults of the file applied."""

    name: str
    activation: str
    runtime: str
    operator: str
    inputs: tuple[JobInput, ...]
    outputs: tuple[str, ...]
    config: dict[str, Any]
    execution_strategy: str
    update_strategy: str
    unique_key: tuple[str, ...]
    source: Source | None
    max_attempts: int
    timeout_seconds: int
    heartbeat_timeout_seconds: int
    priority: str
    max_concurrency: int | None
    max_queue_depth: int | None
    max_queue_age: int | None
    bootstrap: Bootstrap | None = None
    secrets: tuple[str, ...] = ()
    udf: Udf | None = None
    retry: Retry | None = None
    partition_by: str | None = None
    """`day` or `hour`: one partition of the output for each. None: the partitions of its inputs."""
    checks: tuple[Check, ...] = ()

    @property
    def data_inputs(self) -> tuple[JobInput, ...]:
        """The inputs whose rows the job reads."""
        return tuple(item for item in self.inputs if item.reads)


@dataclass(frozen=True)
class Column:
    """A declared column of a published dataset."""

    name: str
    type: str
    nullable: bool = True
    comment: str = field(default="", compare=False)
    """For people. Columns that differ only here are the same column."""

    @property
    def shape(self) -> dict[str, Any]:
        """The fields that make two columns the same."""
        return {"name": self.name, "type": self.type, "nullable": self.nullable}


@dataclass(frozen=True)
class Publication:
    """A published name, and the job output behind it."""

    name: str
    job: str
    output: str
    description: str = ""
    storage: str = "parquet"
    write_mode: str = "replace"
    columns: tuple[Column, ...] | None = None
    read_roles: tuple[str, ...] | None = None
    """The roles that may query it. None: every role."""
    hot: tuple[str, str] | None = None
    """The job and output whose table holds the newest rows."""
    generation: str | None = None
    """The generation that a buffered dataset keeps. None: that of the declared columns."""


@dataclass(frozen=True)
class NotificationRule:
    """When a webhook is sent, and where."""

    name: str
    event: str
    url: str
    secret: str
    after_seconds: int | None
    deeper_than: int | None
    datasets: tuple[str, ...] | None
    """Published names; None: all of the DAG."""


@dataclass(frozen=True)
class Dag:
    """A DAG: its jobs, its published datasets and its notifications, in the order of the file."""

    name: str
    jobs: tuple[Job, ...]
    publish: tuple[Publication, ...]
    notify: tuple[NotificationRule, ...] = ()

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)
