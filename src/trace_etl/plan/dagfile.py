"""Reading a DAG file: YAML with positions, its schema, and what no schema can say."""

import difflib
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from trace_etl.model.dag import Dag, Input, Job, Publication, Source
from trace_etl.model.errors import Fault, Invalid
from trace_etl.plan.operators import OPERATORS
from trace_etl.plan.positions import Located, Path, locate
from trace_etl.plan.where import check_where

NAME = r"^[a-z][a-z0-9_]{0,127}$"
RUNTIMES: tuple[str, ...] = (
    "dispatcher",
    "lambda",
    "ecs_platform",
    "ecs_python",
    "ecs_rust",
    "ecs_udf_python",
    "ecs_udf_ts",
    "ecs_udf_rust",
)


def _seconds(value: object) -> object:
    """`90`, `"90s"`, `"15m"`, `"2h"` → seconds."""
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in "smh":
        return int(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]
    return value


def _where(value: object) -> object:
    if value is None:
        return None
    try:
        return check_where(value)
    except Invalid as error:
        raise PydanticCustomError("where", "{m}", {"m": error.faults[0].message}) from error


Name = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[int, BeforeValidator(_seconds), Field(ge=1, le=30 * 86400)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class FromSection(_Section):
    job: Name | None = None
    output: Name | Annotated[int, Field(ge=0)] | None = None
    dataset: Name | None = None


class InputSection(_Section):
    from_: FromSection = Field(alias="from")
    name: Name | None = Field(None, description="What SQL calls this input.")
    where: Annotated[dict[str, Any] | None, BeforeValidator(_where)] = None


class SourceSection(_Section):
    kind: Literal["manual", "cron"]
    schedule: str | None = None


class ScalingSection(_Section):
    max_concurrency: Annotated[int, Field(ge=1)] | None = None


class Defaults(_Section):
    runtime: str | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    timeout: Seconds = 3600
    heartbeat_timeout: Seconds = 120
    priority: Literal["normal", "bulk"] = "normal"


class JobSection(_Section):
    name: Name
    activation: Literal["source", "reactive"] | None = None
    runtime: str | None = None
    operator: str | None = None
    inputs: list[InputSection] = []
    outputs: list[Name] = Field(min_length=1)
    config: dict[str, Any] = {}
    source: SourceSection | None = None
    execution_strategy: Literal["PerPartition", "PerUpdate"] = "PerPartition"
    update_strategy: Literal["replace"] = "replace"
    scaling: ScalingSection = ScalingSection()
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    priority: Literal["normal", "bulk"] | None = None


class PublishSection(_Section):
    name: Name
    from_: FromSection = Field(alias="from")
    description: str = ""


class DagFile(_Section):
    name: Name
    description: str = ""
    defaults: Defaults = Defaults()
    jobs: list[JobSection] = Field(min_length=1)
    publish: list[PublishSection] = []


def parse_dag(text: str) -> Dag:
    """The DAG that a file describes. Raises Invalid with every fault, each with its position."""
    located = locate(text)
    try:
        file = DagFile.model_validate(located.data)
    except ValidationError as error:
        raise Invalid([_schema_fault(located, e) for e in error.errors()]) from error
    return _Checker(file, located).dag()


def _schema_fault(located: Located, error: ErrorDetails) -> Fault:
    path: Path = error["loc"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown field" + _suggest(str(path[-1]), _fields_at(path[:-1]))
    elif error["type"] == "missing":
        message = "is required and missing"
    elif error["type"] == "string_pattern_mismatch":
        message = "must be lower case letters, digits and _, starting with a letter"
    return located.fault(path, message)


def _fields_at(path: Path) -> list[str]:
    model: type[BaseModel] = DagFile
    for part in path:
        if isinstance(part, int):
            continue
        sections: dict[str, type[BaseModel]] = {
            "jobs": JobSection,
            "publish": PublishSection,
            "inputs": InputSection,
            "from": FromSection,
            "source": SourceSection,
            "scaling": ScalingSection,
            "defaults": Defaults,
        }
        model = sections.get(part, model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _suggest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


class _Checker:
    """What a schema cannot say: references, operators, cycles. Collects every fault."""

    def __init__(self, file: DagFile, located: Located) -> None:
        self.file = file
        self.located = located
        self.faults: list[Fault] = []
        self.sections = {job.name: job for job in file.jobs}

    def dag(self) -> Dag:
        self._unique("jobs", [job.name for job in self.file.jobs])
        self._unique("publish", [entry.name for entry in self.file.publish])
        self._runtime(("defaults", "runtime"), self.file.defaults.runtime)
        jobs = tuple(self._job(i, job) for i, job in enumerate(self.file.jobs))
        publish = tuple(self._publication(i, p) for i, p in enumerate(self.file.publish))
        if not self.faults:
            self._cycles(jobs)
        if self.faults:
            raise Invalid(self.faults)
        return Dag(self.file.name, jobs, publish)

    def _fault(self, path: Path, message: str) -> None:
        self.faults.append(self.located.fault(path, message))

    def _unique(self, section: str, names: list[str]) -> None:
        for i, name in enumerate(names):
            if name in names[:i]:
                self._fault((section, i, "name"), f"{name!r} is used twice")

    def _job(self, i: int, job: JobSection) -> Job:
        at: Path = ("jobs", i)
        activation = job.activation or ("source" if job.source else "reactive")
        self._activation(at, job, activation)
        operator = job.operator or ("source" if activation == "source" else "")
        runtime = self._operator(at, job, operator)
        self._unique_outputs(at, job)
        defaults = self.file.defaults
        return Job(
            name=job.name,
            activation=activation,
            runtime=runtime,
            operator=operator,
            inputs=tuple(
                self._input((*at, "inputs", n), item) for n, item in enumerate(job.inputs)
            ),
            outputs=tuple(job.outputs),
            config=job.config,
            execution_strategy=job.execution_strategy,
            update_strategy=job.update_strategy,
            unique_key=(),
            source=Source(job.source.kind, job.source.schedule) if job.source else None,
            max_attempts=job.max_attempts or defaults.max_attempts,
            timeout_seconds=job.timeout or defaults.timeout,
            heartbeat_timeout_seconds=job.heartbeat_timeout or defaults.heartbeat_timeout,
            priority=job.priority or defaults.priority,
            max_concurrency=job.scaling.max_concurrency,
            max_queue_depth=None,
            max_queue_age=None,
        )

    def _activation(self, at: Path, job: JobSection, activation: str) -> None:
        if activation == "source" and job.source is None:
            self._fault((*at, "source"), "a source job needs `source: {kind: manual}` or cron")
        if activation == "source" and job.inputs:
            self._fault((*at, "inputs"), "a source job has no inputs")
        if activation == "reactive" and job.source is not None:
            self._fault((*at, "source"), "only a job with `activation: source` has a source")
        if activation == "reactive" and not job.inputs:
            self._fault((*at, "inputs"), "a reactive job needs at least one input")
        if job.source and job.source.kind == "cron":
            self._cron(at, job.source.schedule)

    def _cron(self, at: Path, schedule: str | None) -> None:
        try:
            CronSim(schedule or "", datetime.now(UTC))
        except CronSimError as error:
            self._fault((*at, "source", "schedule"), f"is not a cron expression: {error}")

    def _operator(self, at: Path, job: JobSection, name: str) -> str:
        operator = OPERATORS.get(name)
        if operator is None:
            known = sorted(OPERATORS.keys() - {"source"})
            what = f"unknown operator {name!r}" + _suggest(name, known) if name else "is required"
            self._fault((*at, "operator"), what)
            return job.runtime or ""
        try:
            operator.config.model_validate(job.config)
        except ValidationError as error:
            for e in error.errors():
                self._config_fault((*at, "config"), e, list(operator.config.model_fields))
        if wrong := operator.check_outputs(tuple(job.outputs)):
            self._fault((*at, "outputs"), f"of {name} {wrong}")
        self._runtime((*at, "runtime"), job.runtime)
        preferred = job.runtime or self.file.defaults.runtime
        if job.runtime in RUNTIMES and job.runtime not in operator.runtimes:
            allowed = " or ".join(operator.runtimes)
            self._fault((*at, "runtime"), f"{name} runs in {allowed}, not in {job.runtime}")
        return preferred if preferred in operator.runtimes else operator.runtimes[0]

    def _runtime(self, at: Path, runtime: str | None) -> None:
        if runtime is not None and runtime not in RUNTIMES:
            known = list(RUNTIMES)
            self._fault(at, f"unknown runtime {runtime!r}" + _suggest(runtime, known))

    def _config_fault(self, at: Path, error: ErrorDetails, known: list[str]) -> None:
        message = error["msg"]
        if error["type"] == "extra_forbidden":
            message = "unknown field" + _suggest(str(error["loc"][-1]), known)
        elif error["type"] == "missing":
            message = "is required and missing"
        self._fault((*at, *error["loc"]), message)

    def _unique_outputs(self, at: Path, job: JobSection) -> None:
        for n, name in enumerate(job.outputs):
            if name in job.outputs[:n]:
                self._fault((*at, "outputs", n), f"{name!r} is used twice")

    def _input(self, at: Path, item: InputSection) -> Input:
        origin = item.from_
        if (origin.job is None) == (origin.dataset is None):
            self._fault((*at, "from"), "name a `job` or a `dataset`, one of them")
            return Input(item.name or "input")
        if origin.dataset is not None:
            if origin.output is not None:
                self._fault((*at, "from", "output"), "goes with `job`, not with `dataset`")
            return Input(item.name or origin.dataset, dataset=origin.dataset, where=item.where)
        output = self._output((*at, "from"), origin)
        return Input(item.name or output, job=origin.job, output=output, where=item.where)

    def _output(self, at: Path, origin: FromSection) -> str:
        """The output's name, however it was named."""
        producer = self.sections.get(origin.job or "")
        if producer is None:
            known = list(self.sections)
            self._fault((*at, "job"), f"no job {origin.job!r}" + _suggest(origin.job or "", known))
            return str(origin.output)
        outputs = producer.outputs
        if origin.output is None:
            if len(outputs) > 1:
                self._fault(at, f"{origin.job} has several outputs; name one: {', '.join(outputs)}")
            return outputs[0]
        if isinstance(origin.output, int):
            if origin.output >= len(outputs):
                self._fault((*at, "output"), f"{origin.job} has {len(outputs)} outputs, from 0")
                return outputs[0]
            return outputs[origin.output]
        if origin.output not in outputs:
            what = f"{origin.job} has no output {origin.output!r}"
            self._fault((*at, "output"), what + _suggest(origin.output, outputs))
        return origin.output

    def _publication(self, i: int, entry: PublishSection) -> Publication:
        at: Path = ("publish", i, "from")
        if entry.from_.job is None:
            self._fault((*at, "job"), "is required and missing")
            return Publication(entry.name, "", "")
        return Publication(
            entry.name, entry.from_.job, self._output(at, entry.from_), entry.description
        )

    def _cycles(self, jobs: tuple[Job, ...]) -> None:
        upstream = {job.name: [i.job for i in job.inputs if i.job] for job in jobs}
        done: set[str] = set()

        def visit(name: str, trail: list[str]) -> None:
            if name in trail:
                loop = " → ".join([*trail[trail.index(name) :], name][::-1])
                n = [job.name for job in jobs].index(name)
                self._fault(("jobs", n, "inputs"), f"these jobs wait for each other: {loop}")
                done.update(trail)
                return
            if name not in done:
                for parent in upstream[name]:
                    visit(parent, [*trail, name])
                done.add(name)

        for job in jobs:
            visit(job.name, [])


def dag_schema() -> dict[str, Any]:
    """The JSON Schema of a DAG file, for editors."""
    return DagFile.model_json_schema(by_alias=True)
