"""What a DAG file's schema cannot say: references, operators, cycles. Collects every fault."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from trace_etl.dag.buffered_datasets import disagreeing
from trace_etl.dag.complaints import complaint, suggest
from trace_etl.dag.cycles import find_cycle
from trace_etl.dag.operators import NAMEABLE, OPERATORS, Operator
from trace_etl.dag.partition_sizes import find_size_conflicts
from trace_etl.dag.positions import Located, Path
from trace_etl.dag.publications import columns_apart, misplaced
from trace_etl.dag.schema import (
    Defaults,
    FromSection,
    InputSection,
    JobSection,
    PublishSection,
    SourceSection,
)
from trace_etl.model.dag import (
    Bootstrap,
    Column,
    Dag,
    Job,
    JobInput,
    Publication,
    Source,
    Udf,
)
from trace_etl.model.errors import Fault
from trace_etl.model.scope import MAX_BLOCK

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
_MOST_PIECES = 100_000
_UNTRUSTED = ("lambda", "ecs_udf_python", "ecs_udf_ts", "ecs_udf_rust")
_SOURCE_FIELDS = {
    "cron": ("schedule", "timezone", "missed", "most_missed"),
    "webhook": ("secret", "max_bytes", "scope"),
}
_SOURCE_OPTIONS = ("timezone", "missed", "most_missed", "secret", "max_bytes")


@dataclass(frozen=True)
class Drafts:
    """The sections of a file that could be read; a broken one is None, and keeps its place."""

    name: str
    defaults: Defaults | None
    jobs: list[JobSection | None]
    job_names: list[str | None]
    publish: list[PublishSection | None]
    broken: dict[Path, set[str]] = field(default_factory=dict[Path, set[str]])

    def is_broken(self, place: Path, *fields: str) -> bool:
        """Whether one of a section's fields was refused already."""
        return not self.broken.get(place, set()).isdisjoint(fields)


class Checker:
    """Makes the DAG, and complains of everything that is wrong with it."""

    def __init__(self, drafts: Drafts, located: Located) -> None:
        self.drafts = drafts
        self.located = located
        self.defaults = drafts.defaults or Defaults()
        self.faults: list[Fault] = []
        self.sections: dict[str, JobSection] = {}
        for job in drafts.jobs:
            if job:
                self.sections.setdefault(job.name, job)
        self.published: dict[str, FromSection] = {}
        for entry in drafts.publish:
            if entry and entry.from_.job:
                self.published.setdefault(entry.name, entry.from_)

    def dag(self) -> Dag:
        """The DAG; it means something only when there are no faults."""
        self._unique("jobs", self.drafts.job_names)
        self._unique_publications()
        self._runtime(("defaults", "runtime"), self.defaults.runtime)
        jobs = tuple(self._job(("jobs", n), j) for n, j in enumerate(self.drafts.jobs) if j)
        publish = tuple(
            self._publication(("publish", n), p) for n, p in enumerate(self.drafts.publish) if p
        )
        self._cycle(jobs)
        dag = Dag(self.drafts.name, jobs, publish)
        if len(publish) == len(self.drafts.publish):
            for n, rule in disagreeing(dag):
                self._fault(("publish", n), rule)
        if not self.faults and len(jobs) == len(self.drafts.jobs):
            for n, rule in find_size_conflicts(dag):
                self._fault(("jobs", n, "inputs"), rule)
        return dag

    def _fault(self, path: Path, message: str) -> None:
        self.faults.append(self.located.fault(path, message))

    # --- names ------------------------------------------------------------------------------

    def _unique(self, section: str, names: list[str | None]) -> None:
        for n, name in enumerate(names):
            if name is not None and name in names[:n]:
                self._fault((section, n, "name"), f"{name!r} is used twice")

    def _unique_publications(self) -> None:
        names = [p.name if p else None for p in self.drafts.publish]
        # A buffered dataset may have several producers, in one file as over many.
        shared = {p.name for p in self.drafts.publish if p and p.write_mode == "buffered"}
        mixed = {p.name for p in self.drafts.publish if p and p.write_mode != "buffered"}
        self._unique("publish", [None if n in shared - mixed else n for n in names])
        seen: set[tuple[str, str]] = set()
        for n, entry in enumerate(self.drafts.publish):
            producer = self.sections.get((entry.from_.job if entry else None) or "")
            if entry is None or producer is None:
                continue
            output = entry.from_.output
            place = (producer.name, str(producer.outputs[0] if output is None else output))
            if place in seen:
                self._fault(
                    ("publish", n, "from"), f"output {place[1]!r} of {place[0]} has a name already"
                )
            seen.add(place)

    # --- jobs -------------------------------------------------------------------------------

    def _job(self, at: Path, job: JobSection) -> Job:
        activation = job.activation or ("source" if job.source else "reactive")
        if not self.drafts.is_broken(at, "activation", "source", "inputs"):
            self._activation(at, job, activation)
        named = job.operator or ("source" if self._passes_on(job, activation) else "")
        operator = self._operator(at, job, named)
        inputs = tuple(self._input((*at, "inputs", n), i) for n, i in enumerate(job.inputs))
        if operator:
            self._fit(at, job, operator, inputs)
        self._inputs_apart(at, inputs)
        self._outputs_apart(at, job)
        self._strategies(at, job, operator)
        return self._made(job, activation, named, self._place(job, operator), inputs)

    def _made(
        self,
        job: JobSection,
        activation: str,
        operator: str,
        runtime: str,
        inputs: tuple[JobInput, ...],
    ) -> Job:
        defaults = self.defaults
        boot, udf = job.bootstrap, job.udf
        return Job(
            name=job.name,
            activation=activation,
            runtime=runtime,
            operator=operator,
            inputs=inputs,
            outputs=tuple(job.outputs),
            config=job.config,
            execution_strategy=job.execution_strategy,
            update_strategy=job.update_strategy,
            unique_key=tuple(job.unique_key),
            source=_source(job.source) if job.source else None,
            max_attempts=job.max_attempts or defaults.max_attempts,
            timeout_seconds=job.timeout or defaults.timeout,
            heartbeat_timeout_seconds=job.heartbeat_timeout or defaults.heartbeat_timeout,
            priority=job.priority or defaults.priority,
            max_concurrency=job.scaling.max_concurrency,
            max_queue_depth=job.max_queue_depth or defaults.max_queue_depth,
            max_queue_age=job.max_queue_age or defaults.max_queue_age,
            bootstrap=Bootstrap(boot.start, boot.end, boot.chunk) if boot else None,
            secrets=tuple(job.secrets),
            udf=Udf(udf.bundle, udf.sha256, udf.handler) if udf else None,
        )

    def _activation(self, at: Path, job: JobSection, activation: str) -> None:
        if activation == "source" and job.source is None:
            self._fault((*at, "source"), "a source job needs a `source`, such as {kind: manual}")
        if activation == "source" and job.inputs:
            self._fault((*at, "inputs"), "a source job has no inputs")
        if activation == "reactive" and job.source is not None:
            self._fault((*at, "source"), "only a job with `activation: source` has a source")
        if activation == "reactive" and not job.inputs:
            self._fault((*at, "inputs"), "a reactive job needs at least one input")
        if job.source:
            self._source((*at, "source"), job.source)
        if job.bootstrap:
            self._bootstrap((*at, "bootstrap"), job)

    def _source(self, at: Path, source: SourceSection) -> None:
        for kind, names in _SOURCE_FIELDS.items():
            for name in names:
                if kind != source.kind and getattr(source, name) is not None:
                    self._fault((*at, name), f"goes with `kind: {kind}`, not with {source.kind}")
        if source.kind == "webhook" and source.secret is None:
            self._fault((*at, "secret"), "a webhook needs the name of the secret that signs it")
        if source.kind == "cron":
            self._cron((*at, "schedule"), source.schedule)
        if source.timezone is not None and source.timezone not in available_timezones():
            words = f"no time zone {source.timezone!r}; write one such as Europe/Berlin"
            self._fault((*at, "timezone"), words)
        if source.most_missed is not None and source.missed != "all":
            self._fault((*at, "most_missed"), "goes with `missed: all`")
        if source.scope is not None:
            given = source.scope.model_dump(exclude_none=True).keys()
            if given not in ({"start", "end"}, {"cursor"}):
                self._fault((*at, "scope"), "name `start` and `end`, or `cursor` alone")

    def _cron(self, at: Path, schedule: str | None) -> None:
        right = "five fields, such as '*/5 * * * *' for every five minutes"
        if schedule is None:
            self._fault(at, f"is required and missing; write {right}")
            return
        try:
            CronSim(schedule, datetime.now(UTC))
        except CronSimError as error:
            self._fault(at, f"is not a cron expression ({error}); write {right}")

    def _bootstrap(self, at: Path, job: JobSection) -> None:
        assert job.bootstrap
        if job.source is None or job.source.kind not in ("manual", "cron"):
            self._fault(at, "goes with a `manual` or `cron` source: only those ask for blocks")
        if job.bootstrap.end < job.bootstrap.start:
            self._fault((*at, "end"), f"must not be before start ({job.bootstrap.start})")
        pieces = (job.bootstrap.end - job.bootstrap.start) // (job.bootstrap.chunk or MAX_BLOCK)
        if pieces >= _MOST_PIECES:
            self._fault((*at, "chunk"), f"makes more than {_MOST_PIECES:,} requests; ask for more")

    def _passes_on(self, job: JobSection, activation: str) -> bool:
        """Whether the job is a source that only passes on what it is told."""
        return activation == "source" and (job.source is None or job.source.kind != "always_on")

    # --- operators --------------------------------------------------------------------------

    def _operator(self, at: Path, job: JobSection, name: str) -> Operator | None:
        self._runtime((*at, "runtime"), job.runtime)
        found = OPERATORS.get(name)
        if found is None and not self.drafts.is_broken(at, "operator", "source"):
            self._fault((*at, "operator"), self._no_operator(name))
        return found

    def _no_operator(self, name: str) -> str:
        if not name:
            return "is required and missing; name one, such as `sql`"
        return f"unknown operator {name!r}" + suggest(name, NAMEABLE)

    def _fit(self, at: Path, job: JobSection, op: Operator, inputs: tuple[JobInput, ...]) -> None:
        """Whether the job is one that its operator can run."""
        try:
            config = op.config.model_validate(job.config)
            names = tuple(i.name for i in inputs)
            if wrong := config.check_job(names, tuple(job.outputs)):
                self._fault((*at, "config"), f"of {op.name}: {wrong}")
        except ValidationError as error:
            known = [f.alias or name for name, f in op.config.model_fields.items()]
            for e in error.errors():
                self._fault((*at, "config", *e["loc"]), complaint(e, known))
        if wrong := op.check_outputs(tuple(job.outputs)):
            self._fault((*at, "outputs"), f"of {op.name} {wrong}")
        reads = not self.drafts.is_broken(at, "inputs")
        if reads and (wrong := op.check_inputs(tuple(i.name for i in inputs))):
            self._fault((*at, "inputs"), f"of {op.name} {wrong}")
        if job.runtime in RUNTIMES and job.runtime not in op.runtimes:
            allowed = " or ".join(op.runtimes)
            self._fault((*at, "runtime"), f"{op.name} runs in {allowed}, not in {job.runtime}")
        if (job.udf is None) == op.needs_udf and not self.drafts.is_broken(at, "udf"):
            rule = "needs a `udf` with its bundle" if op.needs_udf else "runs no user code"
            self._fault((*at, "udf"), f"{op.name} {rule}")
        if job.secrets and self._place(job, op) in _UNTRUSTED:
            self._fault((*at, "secrets"), f"{self._place(job, op)} runs untrusted code: no secrets")

    def _place(self, job: JobSection, operator: Operator | None) -> str:
        wanted = job.runtime or self.defaults.runtime
        if operator is None:
            return wanted or ""
        return wanted if wanted in operator.runtimes else operator.runtimes[0]

    def _runtime(self, at: Path, runtime: str | None) -> None:
        if runtime is not None and runtime not in RUNTIMES:
            self._fault(at, f"unknown runtime {runtime!r}" + suggest(runtime, RUNTIMES))

    def _strategies(self, at: Path, job: JobSection, operator: Operator | None) -> None:
        if operator and job.update_strategy not in operator.update_strategies:
            can = " or ".join(operator.update_strategies)
            rule = f"{operator.name} can {can}, not {job.update_strategy}"
            self._fault((*at, "update_strategy"), rule)
        if self.drafts.is_broken(at, "unique_key", "update_strategy"):
            return
        if job.update_strategy == "append" and not job.unique_key:
            rule = "`append` needs the columns that make a row unique, so that a replay adds none"
            self._fault((*at, "unique_key"), rule)
        if job.update_strategy == "replace" and job.unique_key:
            self._fault((*at, "unique_key"), "goes with `update_strategy: append`")

    # --- edges ------------------------------------------------------------------------------

    def _outputs_apart(self, at: Path, job: JobSection) -> None:
        for n, name in enumerate(job.outputs):
            if name in job.outputs[:n]:
                self._fault((*at, "outputs", n), f"{name!r} is used twice")

    def _inputs_apart(self, at: Path, inputs: tuple[JobInput, ...]) -> None:
        names = [item.name for item in inputs]
        for n, name in enumerate(names):
            if name in names[:n]:
                rule = f"another input is called {name!r}, too; give one of them a `name`"
                self._fault((*at, "inputs", n), rule)

    def _input(self, at: Path, item: InputSection) -> JobInput:
        origin = item.from_
        if (origin.job is None) == (origin.dataset is None):
            self._fault((*at, "from"), "name a `job` or a `dataset`, one of them")
            return JobInput(item.name or f"input{at[-1]}")
        if origin.dataset is not None and origin.output is not None:
            self._fault((*at, "from", "output"), "goes with `job`, not with `dataset`")
        own = self.published.get(origin.dataset or "")
        if origin.dataset is not None and own is None:
            return JobInput(item.name or origin.dataset, dataset=origin.dataset, where=item.where)
        # A name that this very file publishes is an edge inside it, and waits like any other.
        output = self._output((*at, "from"), own or origin)
        name = item.name or origin.dataset or output
        return JobInput(name, job=(own or origin).job, output=output, where=item.where)

    def _output(self, at: Path, origin: FromSection) -> str:
        """The output's name, however it was named."""
        producer = self.sections.get(origin.job or "")
        if producer is None:
            known = {name for name in self.drafts.job_names if name}
            if origin.job not in known:
                self._fault(
                    (*at, "job"), f"no job {origin.job!r}" + suggest(origin.job or "", known)
                )
            return str(origin.output)
        outputs = producer.outputs
        if origin.output is None:
            if len(outputs) > 1:
                self._fault(at, f"{origin.job} has several outputs; name one: {', '.join(outputs)}")
            return outputs[0]
        if isinstance(origin.output, int):
            if origin.output >= len(outputs):
                which = f"{origin.job} has no output {origin.output}; the last is"
                self._fault((*at, "output"), f"{which} {len(outputs) - 1} ({outputs[-1]})")
                return outputs[0]
            return outputs[origin.output]
        if origin.output not in outputs:
            what = f"{origin.job} has no output {origin.output!r}"
            self._fault((*at, "output"), what + suggest(origin.output, outputs))
        return origin.output

    def _cycle(self, jobs: tuple[Job, ...]) -> None:
        upstream: dict[str, list[str]] = {}
        for job in jobs:
            if job.activation == "reactive":
                upstream.setdefault(job.name, [i.job for i in job.inputs if i.job])
        for loop in find_cycle(upstream):
            n = self.drafts.job_names.index(loop[0])
            told = " → ".join([*loop, loop[0]])
            self._fault(("jobs", n, "inputs"), f"these jobs wait for each other: {told}")

    # --- publications -----------------------------------------------------------------------

    def _publication(self, at: Path, entry: PublishSection) -> Publication:
        origin = entry.from_
        if origin.job is None:
            what = "publish an output of a job of this file: from: {job, output}"
            self._fault((*at, "from"), what)
            return Publication(entry.name, "", "")
        output = self._output((*at, "from"), origin)
        job = self.sections.get(origin.job)
        mode = entry.write_mode or (job.update_strategy if job else "replace")
        storage = entry.storage or ("postgres" if mode == "buffered" else "parquet")
        columns = tuple(Column(c.name, c.type, c.nullable) for c in entry.schema_ or ())
        found = list(columns_apart(columns))
        if job and not self.drafts.is_broken(at, "write_mode", "storage", "schema"):
            found = [*misplaced(entry, job, mode, storage), *found]
        for where, message in found:
            self._fault((*at, *where), message)
        return Publication(
            entry.name, origin.job, output, entry.description, storage, mode, columns or None
        )


def _source(source: SourceSection) -> Source:
    options = {
        name: value for name in _SOURCE_OPTIONS if (value := getattr(source, name)) is not None
    }
    if source.scope is not None:
        options["scope"] = source.scope.model_dump(exclude_none=True)
    return Source(source.kind, source.schedule, options)
