"""The sections of a DAG file and the allowed values of each field."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)

from trace_etl.dag.field_types import (
    Attempts,
    Block,
    ColumnTypeName,
    Count,
    Dotted,
    Identifier,
    Name,
    Seconds,
    Text,
    check_output,
    parse_where,
)
from trace_etl.model.dag import Activation, OnFailure, Priority, SourceKind, TimePartition
from trace_etl.model.roles import Role


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class FromSection(Section):
    """The origin of rows: an output of a job in this file, or a published dataset."""

    job: Name | None = None
    output: Annotated[str | int | None, BeforeValidator(check_output)] = Field(
        None, description="Name or index of the output. Required if the job has several."
    )
    output_index: Annotated[StrictInt, Field(ge=0)] | None = Field(
        None, description="Index of the output: the same as `output` with a number."
    )
    dataset: Name | None = Field(None, description="Name of a dataset that any DAG publishes.")

    @property
    def chosen_output(self) -> str | int | None:
        """The name or the index of the output; None if the file gives neither."""
        return self.output_index if self.output is None else self.output


class InputSection(Section):
    from_: FromSection = Field(alias="from")
    name: Name | None = Field(None, description="Name of this input for the operator.")
    where: Annotated[
        dict[str, Any] | None,
        BeforeValidator(parse_where, json_schema_input_type=dict[str, Any] | str),
    ] = Field(None, description="Filter for the rows to read: column to value or list of values.")
    trigger: Literal["always", "only", "never"] | None = Field(
        None,
        description="`only`: starts the job and brings no rows. `never`: rows are read, but changes start "
        "nothing. Default: `only` for sources, `never` for the other inputs of a job that reads a source, "
        "otherwise `always`.",
    )
    time: Identifier | None = Field(
        None,
        description="With `partition_by`: the column with the time of a row, a timestamp, a date, or "
        "seconds since 1970.",
    )


class ScopeSection(Section):
    """The fields of a delivery's body that hold its block range or cursor. Dots name nested fields."""

    start: Dotted | None = None
    end: Dotted | None = None
    cursor: Dotted | None = None


class SourceSection(Section):
    kind: SourceKind
    schedule: Text | None = Field(None, description="cron: schedule of five fields, in `timezone`.")
    timezone: Text | None = Field(
        None, description="cron: time zone, such as Europe/Berlin. Default: UTC."
    )
    missed: Literal["skip", "last", "all"] | None = Field(
        None, description="cron: which missed ticks to run later. Default: `last`."
    )
    most_missed: Annotated[StrictInt, Field(ge=1, le=1000)] | None = Field(
        None,
        description="cron: with `missed: all`, the maximum number of missed ticks. Default: 100.",
    )
    scope: ScopeSection | None = Field(
        None, description="webhook: fields of the body, either `start` and `end` or `cursor`."
    )
    secret: Identifier | None = Field(
        None, description="webhook: name of the secret that signs deliveries."
    )
    max_bytes: Annotated[StrictInt, Field(ge=1, le=1024 * 1024)] | None = Field(
        None, description="webhook: maximum size of a delivery in bytes."
    )


class BootstrapSection(Section):
    """Blocks that the platform requests once, when the job is first deployed."""

    start: Block
    end: Block
    chunk: Count | None = Field(None, description="Blocks per request.")


class ScalingSection(Section):
    max_concurrency: Count | None = Field(
        None, description="Maximum number of tasks that run concurrently."
    )


class RetrySection(Section):
    """How failed attempts are repeated."""

    attempts: Attempts | None = Field(None, description="Attempts of a task. Default: 3.")
    delay: Seconds | None = Field(
        None, description="Delay before the second attempt; it doubles with each one. Default: 30s."
    )
    max_delay: Seconds | None = Field(None, description="Longest delay. Default: 10m.")
    unreachable: Seconds | None = Field(
        None,
        description="How long to wait for an endpoint that does not answer. These attempts do not count. "
        "Default: 6h.",
    )


class RowsSection(Section):
    """Bounds of the number of rows."""

    min: Annotated[StrictInt, Field(ge=0)] | None = None
    max: Annotated[StrictInt, Field(ge=0)] | None = None


class FreshnessSection(Section):
    """How old the newest row may be."""

    column: Identifier = Field(
        description="The time of a row: a timestamp, a date, or seconds since 1970."
    )
    within: Seconds


class ReferencesSection(Section):
    """Columns whose values must exist in an input or in another output of the job."""

    columns: list[Identifier] = Field(min_length=1)
    input: Name | None = Field(None, description="Name of the input with the values.")
    output: Name | None = Field(
        None, description="Instead of `input`: another output of the job with the values."
    )
    to: list[Identifier] | None = Field(
        None,
        min_length=1,
        description="Columns of that input or output with the values. Default: `columns`.",
    )


class CheckSection(Section):
    """A rule for the rows of an output, checked before they are committed.

    Each check has exactly one of `condition`, `unique`, `not_null`, `rows`, `freshness` and `references`.
    """

    name: Name | None = Field(None, description="Default: the kind of check and its columns.")
    output: Annotated[str | int | None, BeforeValidator(check_output)] = Field(
        None, description="Name or index of the output. Required if the job has several."
    )
    condition: Annotated[StrictStr, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="A SQL condition. A row fails if it is false; a row with null passes."
    )
    unique: list[Identifier] | None = Field(
        None, min_length=1, description="Columns that identify a row of the partition."
    )
    not_null: list[Identifier] | None = Field(
        None, min_length=1, description="Columns that must have values."
    )
    rows: RowsSection | None = None
    freshness: FreshnessSection | None = None
    references: ReferencesSection | None = None
    on_failure: OnFailure = Field(
        "block",
        description="`block`: the task fails, and nothing is committed. `warn`: the partition is committed"
        " and the result recorded. `block_consumers`: the same, but the jobs in `consumers` do not read the"
        " partition until it is replaced or the result is accepted.",
    )
    consumers: list[Name] | None = Field(
        None, min_length=1, description="block_consumers: jobs of this file that read the output."
    )
    key: list[Identifier] | None = Field(
        None,
        min_length=1,
        description="Columns that identify failing rows in messages. Default: the columns of `unique`, the"
        " `unique_key` of the job, the block columns, or the first three columns.",
    )


class UdfSection(Section):
    """User code: an immutable bundle. Its hash is verified before it runs."""

    bundle: Annotated[StrictStr, Field(min_length=1)]
    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")]
    handler: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        None,
        description="`module.function`, or `bootstrap` for a native program, which is the default on"
        " runtimes of native programs.",
    )


class Defaults(Section):
    """Default values for all jobs of the file."""

    runtime: Text | None = None
    max_attempts: Attempts = 3
    retry: RetrySection | None = None
    timeout: Seconds = 3600
    heartbeat_timeout: Seconds = 120
    priority: Priority = "normal"
    max_queue_depth: Count | None = None
    max_queue_age: Seconds | None = None


class JobSection(Section):
    name: Name
    activation: Activation | None = Field(
        None, description="Default: `source` if the job has a `source`, otherwise `reactive`."
    )
    runtime: Text | None = Field(
        None, description="Runtime of the job. Default: the first runtime of its operator."
    )
    operator: Text | None = None
    inputs: list[InputSection] = []
    outputs: list[Name] = Field(min_length=1)
    config: dict[str, Any] = Field({}, description="Settings of the operator.")
    source: SourceSection | None = None
    bootstrap: BootstrapSection | None = None
    execution_strategy: Literal["PerPartition", "PerUpdate", "WholeDataset"] = Field(
        "PerPartition",
        description="`PerPartition`: a task per changed partition. `PerUpdate`: a task per cursor. "
        "`WholeDataset`: a task over all rows of the inputs, which replaces the whole output.",
    )
    partition_by: TimePartition | None = Field(
        None,
        description="One partition of the output per day or hour (UTC), by the `time` of the inputs. "
        "Default: the partitions of the inputs.",
    )
    update_strategy: Literal["replace", "append"] = "replace"
    unique_key: list[Identifier] = Field(
        [], description="Columns that identify a row. Required with `update_strategy: append`."
    )
    scaling: ScalingSection = Field(default_factory=lambda: ScalingSection(max_concurrency=None))
    max_attempts: Attempts | None = None
    retry: RetrySection | None = None
    timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    priority: Priority | None = Field(
        None, description="Tasks with `normal` run before tasks with `bulk`."
    )
    max_queue_depth: Count | None = Field(
        None, description="Number of queued tasks at which upstream jobs are paused."
    )
    max_queue_age: Seconds | None = Field(
        None, description="Age of the oldest queued task at which upstream jobs are paused."
    )
    secrets: list[Identifier] = Field(
        [],
        description="Names of the secrets that the operator receives, on trusted runtimes only.",
    )
    udf: UdfSection | None = None
    checks: list[CheckSection] = Field(
        [], description="Rules for the rows of the outputs, checked before they are committed."
    )


class ColumnSection(Section):
    name: Identifier
    type: ColumnTypeName
    nullable: StrictBool = True
    comment: Text = Field("", description="What the column holds, for people who query it.")


class PublishSection(Section):
    name: Name
    from_: FromSection = Field(alias="from")
    storage: Literal["parquet", "postgres"] | None = Field(
        None, description="Default: `postgres` for buffered datasets, otherwise `parquet`."
    )
    write_mode: Literal["replace", "append", "buffered"] | None = Field(
        None, description="Default: the update strategy of the job."
    )
    schema_: list[ColumnSection] | None = Field(None, alias="schema", min_length=1)
    description: Text = ""
    read_roles: list[Role] | None = Field(
        None,
        min_length=1,
        description="Roles whose users may query it, and the roles above them. Default: every role.",
    )
    hot: FromSection | None = Field(
        None,
        description="Output of a `block_follower` with the newest rows. Queries read its blocks that"
        " are not committed here yet.",
    )


class NotifySection(Section):
    """A rule that sends a signed webhook when something happens in the DAG."""

    name: Name
    event: Literal["failure", "check", "late", "gap", "reorganisation"] = Field(
        description="failure: a task failed permanently. check: a data check failed, whatever its"
        " `on_failure`. late: no new partition for `after`. gap: blocks are missing for `after`."
        " reorganisation: a follower replaced more than `deeper_than` blocks."
    )
    url: Annotated[StrictStr, Field(pattern=r"^https?://[^\s]+$", max_length=2048)]
    secret: Identifier = Field(description="Name of the secret that signs deliveries.")
    after: Seconds | None = Field(None, description="late, gap: how long. Default of gap: 10m.")
    deeper_than: Block | None = Field(None, description="reorganisation: number of blocks.")
    datasets: list[Name] | None = Field(
        None,
        min_length=1,
        description="check, late, gap, reorganisation: published names of this DAG. Default: all.",
    )


class DagFile(Section):
    name: Name
    description: Text = ""
    defaults: Defaults = Defaults()
    jobs: list[JobSection] = Field(min_length=1)
    publish: list[PublishSection] = []
    notify: list[NotifySection] = []


SECTIONS: dict[str, type[Section]] = {
    "jobs": JobSection,
    "publish": PublishSection,
    "notify": NotifySection,
    "inputs": InputSection,
    "from": FromSection,
    "hot": FromSection,
    "source": SourceSection,
    "scope": ScopeSection,
    "bootstrap": BootstrapSection,
    "scaling": ScalingSection,
    "retry": RetrySection,
    "defaults": Defaults,
    "udf": UdfSection,
    "checks": CheckSection,
    "rows": RowsSection,
    "freshness": FreshnessSection,
    "references": ReferencesSection,
    "schema": ColumnSection,
}


def fields_at(path: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the section at a path in the file."""
    named = [part for part in path if isinstance(part, str)]
    model = SECTIONS[named[-1]] if named else DagFile
    return [field.alias or name for name, field in model.model_fields.items()]
