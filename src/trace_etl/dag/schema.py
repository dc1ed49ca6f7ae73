"""The sections of a DAG file: what each field may be."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from trace_etl.dag.column_types import DeclaredType
from trace_etl.dag.complaints import shown
from trace_etl.dag.where import check_where
from trace_etl.model.errors import Invalid
from trace_etl.model.scope import MAX_BLOCK

NAME = r"^[a-z][a-z0-9_]{0,127}$"
_LONGEST = 30 * 86400


def _seconds(value: object) -> object:
    """`90`, `"90s"`, `"15m"`, `"2h"`, `"1d"` → seconds."""
    seconds = value
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in "smhd":
        seconds = int(value[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[value[-1]]
    if isinstance(seconds, int) and not isinstance(seconds, bool) and 1 <= seconds <= _LONGEST:
        return seconds
    rule = "must be a time from 1s to 30d, such as 90, 90s, 15m, 2h or 1d"
    raise PydanticCustomError("seconds", "{m}", {"m": f"{rule}, not {shown(value)}"})


def _where(value: object) -> object:
    if value is None:
        return None
    try:
        return check_where(value)
    except Invalid as error:
        fault = error.faults[0]
        column = fault.field.removeprefix("where").removeprefix(".")
        told = f"{column!r} {fault.message}" if column else fault.message
        raise PydanticCustomError("where", "{m}", {"m": told}) from error


def _output(value: object) -> object:
    """An output's name, or its index."""
    if isinstance(value, str) or (type(value) is int and value >= 0):
        return value
    rule = f"must be an output's name or its index from 0, not {shown(value)}"
    raise PydanticCustomError("output", "{m}", {"m": rule})


Text = StrictStr
Name = Annotated[StrictStr, Field(pattern=NAME)]
Secret = Annotated[StrictStr, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Count = Annotated[StrictInt, Field(ge=1)]
Block = Annotated[StrictInt, Field(ge=0, le=MAX_BLOCK)]
Attempts = Annotated[StrictInt, Field(ge=1, le=100)]
Seconds = Annotated[
    int,
    BeforeValidator(_seconds, json_schema_input_type=int | str),
    Field(description="Seconds, or a text such as 90s, 15m, 2h, 1d."),
]
Dotted = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=256)]
Priority = Literal["normal", "bulk"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class FromSection(Section):
    """Where rows come from: an output of a job of this file, or a published dataset."""

    job: Name | None = None
    output: Annotated[str | int | None, BeforeValidator(_output)] = Field(
        None, description="The output's name or index. Needed when the job has several."
    )
    dataset: Name | None = Field(None, description="A dataset that some DAG publishes.")


class InputSection(Section):
    from_: FromSection = Field(alias="from")
    name: Name | None = Field(None, description="What the operator calls this input.")
    where: Annotated[
        dict[str, Any] | None, BeforeValidator(_where, json_schema_input_type=dict[str, Any] | str)
    ] = Field(None, description="Rows to read: column to value, or to a list of values.")


class ScopeSection(Section):
    """Where a delivery says what it is about: fields by name, nested ones with dots."""

    start: Dotted | None = None
    end: Dotted | None = None
    cursor: Dotted | None = None


class SourceSection(Section):
    kind: Literal["manual", "cron", "webhook", "always_on"]
    schedule: Text | None = Field(None, description="cron: five fields, in `timezone`.")
    timezone: Text | None = Field(
        None, description="cron: such as Europe/Berlin; UTC if not given."
    )
    missed: Literal["skip", "last", "all"] | None = Field(
        None, description="cron: which ticks to make up for that nobody fired; `last` if not given."
    )
    most_missed: Annotated[StrictInt, Field(ge=1, le=1000)] | None = Field(
        None, description="cron: with `missed: all`, how many at most; 100 if not given."
    )
    scope: ScopeSection | None = Field(
        None, description="webhook: `start` and `end`, or `cursor`; fields of the body."
    )
    secret: Secret | None = Field(None, description="webhook: the secret that signs deliveries.")
    max_bytes: Annotated[StrictInt, Field(ge=1, le=1024 * 1024)] | None = Field(
        None, description="webhook: the largest delivery."
    )


class BootstrapSection(Section):
    """Blocks to ask for by itself, once, when the job is first deployed."""

    start: Block
    end: Block
    chunk: Count | None = Field(None, description="Blocks per request.")


class ScalingSection(Section):
    max_concurrency: Count | None = Field(None, description="Tasks that run at once.")


class UdfSection(Section):
    """User code: an immutable bundle, verified before it runs."""

    bundle: Annotated[StrictStr, Field(min_length=1)]
    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")]
    handler: Annotated[StrictStr, Field(min_length=1)] = "handler"


class Defaults(Section):
    """What jobs have unless they say otherwise."""

    runtime: Text | None = None
    max_attempts: Attempts = 3
    timeout: Seconds = 3600
    heartbeat_timeout: Seconds = 120
    priority: Priority = "normal"
    max_queue_depth: Count | None = None
    max_queue_age: Seconds | None = None


class JobSection(Section):
    name: Name
    activation: Literal["source", "reactive"] | None = Field(
        None, description="`source` with a `source:`, else `reactive`."
    )
    runtime: Text | None = Field(
        None, description="Where it runs; the operator's own if not given."
    )
    operator: Text | None = None
    inputs: list[InputSection] = []
    outputs: list[Name] = Field(min_length=1)
    config: dict[str, Any] = Field({}, description="The operator's own settings.")
    source: SourceSection | None = None
    bootstrap: BootstrapSection | None = None
    execution_strategy: Literal["PerPartition", "PerUpdate"] = "PerPartition"
    update_strategy: Literal["replace", "append"] = "replace"
    unique_key: list[Secret] = Field([], description="What makes a row unique; `append` needs it.")
    scaling: ScalingSection = Field(default_factory=lambda: ScalingSection(max_concurrency=None))
    max_attempts: Attempts | None = None
    timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    priority: Priority | None = Field(None, description="`bulk` gives way to `normal`.")
    max_queue_depth: Count | None = Field(
        None, description="Tasks that may wait before the producers upstream are paused."
    )
    max_queue_age: Seconds | None = Field(
        None, description="How long the oldest may wait before the producers upstream are paused."
    )
    secrets: list[Secret] = Field([], description="Names of secrets that the operator is given.")
    udf: UdfSection | None = None


class ColumnSection(Section):
    name: Secret
    type: DeclaredType
    nullable: StrictBool = True


class PublishSection(Section):
    name: Name
    from_: FromSection = Field(alias="from")
    storage: Literal["parquet", "postgres"] | None = Field(
        None, description="`postgres` for buffered datasets, else `parquet`."
    )
    write_mode: Literal["replace", "append", "buffered"] | None = Field(
        None, description="The job's update strategy if not given."
    )
    schema_: list[ColumnSection] | None = Field(None, alias="schema", min_length=1)
    description: Text = ""


class DagFile(Section):
    name: Name
    description: Text = ""
    defaults: Defaults = Defaults()
    jobs: list[JobSection] = Field(min_length=1)
    publish: list[PublishSection] = []


SECTIONS: dict[str, type[Section]] = {
    "jobs": JobSection,
    "publish": PublishSection,
    "inputs": InputSection,
    "from": FromSection,
    "source": SourceSection,
    "scope": ScopeSection,
    "bootstrap": BootstrapSection,
    "scaling": ScalingSection,
    "defaults": Defaults,
    "udf": UdfSection,
    "schema": ColumnSection,
}


def fields_at(path: tuple[int | str, ...]) -> list[str]:
    """The fields that a section has, by its path in the file."""
    named = [part for part in path if isinstance(part, str)]
    model = SECTIONS[named[-1]] if named else DagFile
    return [field.alias or name for name, field in model.model_fields.items()]
