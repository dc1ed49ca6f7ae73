"""Check the rules that the schema of a DAG file cannot express, and collect all faults."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from trace_etl.dag.buffered_datasets import (
    SHIPPED,
    find_conflicting_publications,
    find_unbuffered_outputs,
)
from trace_etl.dag.checks.cycles import find_cycles
from trace_etl.dag.checks.data_checks import build_check, find_check_faults
from trace_etl.dag.checks.file_formats import find_unreadable_inputs
from trace_etl.dag.checks.notifications import find_rule_faults, make_rules
from trace_etl.dag.checks.partition_sizes import find_size_conflicts
from trace_etl.dag.checks.publications import (
    find_duplicate_columns,
    find_hot_part_fault,
    find_publication_faults,
)
from trace_etl.dag.checks.triggers import find_trigger_faults, resolve_triggers
from trace_etl.dag.error_messages import describe_error, suggest
from trace_etl.dag.operators import NAMEABLE, OPERATORS, Operator
from trace_etl.dag.positions import FieldPath, Located
from trace_etl.dag.runtimes import Runtimes
from trace_etl.dag.schema import (
    Defaults,
    FromSection,
    InputSection,
    JobSection,
    NotifySection,
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
    Retry,
    Source,
    Udf,
)
from trace_etl.model.errors import Fault
from trace_etl.model.scope import MAX_BLOCK

_MAX_BOOTSTRAP_REQUESTS = 100_000
_USUAL_DELAY, _USUAL_MAX_DELAY = 30, 600  # seconds
_SOURCE_FIELDS = {
    "cron": ("schedule", "timezone", "missed", "most_missed"),
    "webhook": ("secret", "max_bytes", "scope"),
}
_SOURCE_OPTIONS = ("timezone", "missed", "most_missed", "secret", "max_bytes")


@dataclass(frozen=True)
class ParsedSections:
    """The sections of a file. An invalid section is None, so that the others keep their index."""

    name: str
    defaults: Defaults | None
    jobs: list[JobSection | None]
    job_names: list[str | None]
    publish: list[PublishSection | None]
    notify: list[NotifySection | None] = field(default_factory=list[NotifySection | None])
    invalid: dict[FieldPath, set[str]] = field(default_factory=dict[FieldPath, set[str]])

    def has_invalid(self, section: FieldPath, *fields: str) -> bool:
        """Return whether the schema refused one of these fields of a section."""
        return not self.invalid.get(section, set()).isdisjoint(fields)


class DagChecker:
    """Builds the DAG from its sections, and collects the faults of the file."""

    def __init__(self, parsed: ParsedSections, located: Located, runtimes: Runtimes) -> None:
        self.parsed = parsed
        self.runtimes = runtimes
        self.located = located
        self.defaults = parsed.defaults or Defaults()
        self.faults: list[Fault] = []
        self.sections: dict[str, JobSection] = {}
        for job in parsed.jobs:
            if job:
                self.sections.setdefault(job.name, job)
        self.published: dict[str, FromSection] = {}
        for entry in parsed.publish:
            if entry and entry.from_.job:
                self.published.setdefault(entry.name, entry.from_)

    def build_dag(self) -> Dag:
        """Build the DAG. It is valid only if `faults` stays empty."""
        self._check_unique("jobs", self.parsed.job_names)
        self._check_unique_publications()
        self._check_runtime(("defaults", "runtime"), self.defaults.runtime)
        jobs = tuple(self._check_job(("jobs", n), j) for n, j in enumerate(self.parsed.jobs) if j)
        publish = tuple(
            self._check_publication(("publish", n), p)
            for n, p in enumerate(self.parsed.publish)
            if p
        )
        self._check_cycles(jobs)
        rules = find_rule_faults(self.parsed.notify, {entry.name for entry in publish})
        for path, message in rules:
            self._add_fault(path, message)
        dag = Dag(self.parsed.name, jobs, publish, make_rules(self.parsed.notify))
        if len(publish) == len(self.parsed.publish):
            for n, rule in find_conflicting_publications(dag):
                self._add_fault(("publish", n), rule)
        if not self.faults and len(jobs) == len(self.parsed.jobs):
            for path, rule in find_check_faults(dag, list(self.sections.values())):
                self._add_fault(path, rule)
            for n, m, rule in find_unbuffered_outputs(dag):
                self._add_fault(("jobs", n, "outputs", m), rule)
            for n, rule in find_size_conflicts(dag):
                self._add_fault(("jobs", n, "inputs"), rule)
            for n, i, rule in find_unreadable_inputs(dag):
                self._add_fault(("jobs", n, "inputs", i, "from"), rule)
        return dag

    def _add_fault(self, path: FieldPath, message: str) -> None:
        self.faults.append(self.located.fault(path, message))

    # --- names ------------------------------------------------------------------------------

    def _check_unique(self, section: str, names: list[str | None]) -> None:
        for n, name in enumerate(names):
            if name is not None and name in names[:n]:
                self._add_fault(
                    (section, n, "name"), f"{name!r} is used twice; choose another name"
                )

    def _check_unique_publications(self) -> None:
        names = [p.name if p else None for p in self.parsed.publish]
        # A buffered dataset may have several producers, in one file or in several.
        shared = {p.name for p in self.parsed.publish if p and p.write_mode == "buffered"}
        unshared = {p.name for p in self.parsed.publish if p and p.write_mode != "buffered"}
        self._check_unique("publish", [None if n in shared - unshared else n for n in names])
        seen: set[tuple[str, str]] = set()
        for n, entry in enumerate(self.parsed.publish):
            producer = self.sections.get((entry.from_.job if entry else None) or "")
            if entry is None or producer is None:
                continue
            key = (producer.name, _name_output(producer.outputs, entry.from_.chosen_output))
            if key in seen:
                rule = f"output {key[1]!r} of {key[0]} is already published under another name"
                self._add_fault(("publish", n, "from"), f"{rule}; remove one of them")
            seen.add(key)

    # --- jobs -------------------------------------------------------------------------------

    def _check_job(self, at: FieldPath, job: JobSection) -> Job:
        activation = job.activation or ("source" if job.source else "reactive")
        if not self.parsed.has_invalid(at, "activation", "source", "inputs"):
            self._check_activation(at, job, activation)
        operator_name = job.operator or ("source" if self._only_forwards(job, activation) else "")
        operator = self._find_operator(at, job, operator_name)
        inputs = tuple(self._resolve_input((*at, "inputs", n), i) for n, i in enumerate(job.inputs))
        if not self.parsed.has_invalid(at, "inputs", "source", "execution_strategy"):
            inputs = resolve_triggers(job, operator, inputs, self.sections)
            for path, rule in find_trigger_faults(job, operator, inputs, self.sections):
                self._add_fault((*at, *path), rule)
        if operator:
            self._check_operator(at, job, operator, inputs)
        self._check_unique_inputs(at, inputs)
        self._check_unique_outputs(at, job)
        self._check_strategies(at, job, operator)
        self._check_retry(at, job)
        return self._build_job(
            job, activation, operator_name, self._choose_runtime(job, operator), inputs
        )

    def _build_job(
        self,
        job: JobSection,
        activation: str,
        operator: str,
        runtime: str,
        inputs: tuple[JobInput, ...],
    ) -> Job:
        defaults = self.defaults
        bootstrap, udf = job.bootstrap, job.udf
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
            source=_build_source(job.source) if job.source else None,
            max_attempts=_count_attempts(job, defaults),
            retry=_build_retry(job, defaults),
            timeout_seconds=job.timeout or defaults.timeout,
            heartbeat_timeout_seconds=job.heartbeat_timeout or defaults.heartbeat_timeout,
            priority=job.priority or defaults.priority,
            max_concurrency=job.scaling.max_concurrency,
            max_queue_depth=job.max_queue_depth or defaults.max_queue_depth,
            max_queue_age=job.max_queue_age or defaults.max_queue_age,
            bootstrap=Bootstrap(bootstrap.start, bootstrap.end, bootstrap.chunk)
            if bootstrap
            else None,
            secrets=tuple(job.secrets),
            udf=Udf(udf.bundle, udf.sha256, udf.handler) if udf else None,
            partition_by=job.partition_by,
            checks=tuple(build_check(check, job) for check in job.checks),
        )

    def _check_activation(self, at: FieldPath, job: JobSection, activation: str) -> None:
        if activation == "source" and job.source is None:
            self._add_fault(
                (*at, "source"), "is required for a source job; add one, such as `{kind: manual}`"
            )
        if activation == "source" and job.inputs:
            self._add_fault((*at, "inputs"), "must be empty for a source job; remove them")
        if activation == "reactive" and job.source is not None:
            rule = "is allowed only with `activation: source`; remove it, or change the activation"
            self._add_fault((*at, "source"), rule)
        if activation == "reactive" and not job.inputs:
            self._add_fault(
                (*at, "inputs"), "must have at least one input for a reactive job; add one"
            )
        if job.source:
            self._check_source((*at, "source"), job.source)
            if activation == "source" and job.source.kind != "always_on" and job.operator:
                rule = f"a {job.source.kind} source only emits events and runs no operator"
                self._add_fault(
                    (*at, "operator"), f"{rule}; remove it, and add a job that reads this source"
                )
        if job.bootstrap:
            self._check_bootstrap((*at, "bootstrap"), job)

    def _check_source(self, at: FieldPath, source: SourceSection) -> None:
        for kind, names in _SOURCE_FIELDS.items():
            for name in names:
                if kind != source.kind and getattr(source, name) is not None:
                    rule = f"is allowed only with `kind: {kind}`, not with `kind: {source.kind}`"
                    self._add_fault((*at, name), f"{rule}; remove it")
        if source.kind == "webhook" and source.secret is None:
            rule = "is required for a webhook; name the secret that signs its deliveries"
            self._add_fault((*at, "secret"), rule)
        if source.kind == "cron":
            self._check_schedule((*at, "schedule"), source.schedule)
        if source.timezone is not None and source.timezone not in available_timezones():
            rule = f"unknown time zone {source.timezone!r}; use a name such as Europe/Berlin"
            self._add_fault((*at, "timezone"), rule)
        if source.most_missed is not None and source.missed != "all":
            self._add_fault((*at, "most_missed"), "is allowed only with `missed: all`; remove it")
        if source.scope is not None:
            scope_fields = source.scope.model_dump(exclude_none=True).keys()
            if scope_fields not in ({"start", "end"}, {"cursor"}):
                self._add_fault(
                    (*at, "scope"), "must have either `start` and `end`, or only `cursor`"
                )

    def _check_schedule(self, at: FieldPath, schedule: str | None) -> None:
        example = "five fields, such as '*/5 * * * *' for every five minutes"
        if schedule is None:
            self._add_fault(at, f"is required but missing; write {example}")
            return
        try:
            CronSim(schedule, datetime.now(UTC))
        except CronSimError as error:
            self._add_fault(at, f"is not a valid cron expression ({error}); write {example}")

    def _check_bootstrap(self, at: FieldPath, job: JobSection) -> None:
        assert job.bootstrap
        if job.source is None or job.source.kind != "manual":
            rule = "is allowed only with a `manual` source; remove it, or change the source"
            self._add_fault(at, rule)
        if job.bootstrap.end < job.bootstrap.start:
            rule = (
                f"must not be less than start ({job.bootstrap.start}), but is {job.bootstrap.end}"
            )
            self._add_fault((*at, "end"), rule)
        requests = (job.bootstrap.end - job.bootstrap.start) // (job.bootstrap.chunk or MAX_BLOCK)
        if requests >= _MAX_BOOTSTRAP_REQUESTS:
            rule = f"splits the range into more than {_MAX_BOOTSTRAP_REQUESTS:,} requests"
            self._add_fault((*at, "chunk"), f"{rule}; use a larger chunk")

    def _only_forwards(self, job: JobSection, activation: str) -> bool:
        """Return whether the job is a source that only forwards events."""
        return activation == "source" and (job.source is None or job.source.kind != "always_on")

    # --- operators --------------------------------------------------------------------------

    def _find_operator(self, at: FieldPath, job: JobSection, name: str) -> Operator | None:
        self._check_runtime((*at, "runtime"), job.runtime)
        operator = OPERATORS.get(name)
        if operator is None and not self.parsed.has_invalid(at, "operator", "source"):
            self._add_fault((*at, "operator"), self._explain_unknown_operator(name))
        return operator

    def _explain_unknown_operator(self, name: str) -> str:
        if not name:
            return "is required but missing; name one, such as `sql`"
        return f"unknown operator {name!r}" + suggest(name, NAMEABLE)

    def _check_operator(
        self, at: FieldPath, job: JobSection, op: Operator, inputs: tuple[JobInput, ...]
    ) -> None:
        """Check that the operator can run the job."""
        try:
            config = op.config.model_validate(job.config)
            names = tuple(i.name for i in inputs if i.reads)
            if rule := config.check_job(names, tuple(job.outputs)):
                self._add_fault((*at, "config"), f"{rule} (operator {op.name})")
        except ValidationError as error:
            known = [f.alias or name for name, f in op.config.model_fields.items()]
            for e in error.errors():
                self._add_fault((*at, "config", *e["loc"]), describe_error(e, known))
        if rule := op.check_outputs(tuple(job.outputs)):
            self._add_fault((*at, "outputs"), f"{rule} (operator {op.name})")
        are_valid = not self.parsed.has_invalid(at, "inputs")
        if are_valid and (rule := op.check_inputs(tuple(i.name for i in inputs if i.reads))):
            others = (
                "" if all(i.reads for i in inputs) else "; inputs that bring no rows do not count"
            )
            self._add_fault((*at, "inputs"), f"{rule} (operator {op.name}{others})")
        self._check_fitting_runtime(at, job, op)
        if (job.udf is None) == op.needs_udf and not self.parsed.has_invalid(at, "udf"):
            rule = "is required; add its bundle" if op.needs_udf else "is not supported; remove it"
            self._add_fault((*at, "udf"), f"{rule} (operator {op.name})")

    def _check_fitting_runtime(self, at: FieldPath, job: JobSection, op: Operator) -> None:
        """Check the runtime of a job: its launcher, its trust and its longest timeout."""
        name = self._choose_runtime(job, op)
        runtime = self.runtimes.entries.get(name)
        if runtime is None:
            return  # reported as unknown
        if runtime.launcher not in op.launchers:
            allowed = " or ".join(self.runtimes.fitting(op.launchers))
            origin = "" if job.runtime else " (the `runtime` of `defaults`); set `runtime` here"
            rule = f"must be {allowed} for the operator {op.name}, not {name}{origin}"
            self._add_fault((*at, "runtime"), rule)
            return
        if job.secrets:
            reason = f"the operator {op.name} takes no secrets"
            if not runtime.is_trusted:
                reason = f"{name} runs untrusted code"
            self._add_fault((*at, "secrets"), f"must be empty: {reason}; remove them")
        timeout = job.timeout or self.defaults.timeout
        if runtime.max_timeout is not None and timeout > runtime.max_timeout:
            rule = f"must be at most {runtime.max_timeout} s on the runtime {name}, not {timeout} s"
            self._add_fault((*at, "timeout"), f"{rule}; set a shorter `timeout`")

    def _choose_runtime(self, job: JobSection, operator: Operator | None) -> str:
        # The platform, not the file, chooses the runtime of an operator that no file can name.
        requested = job.runtime or (
            None if operator and operator.is_implicit else self.defaults.runtime
        )
        if requested or operator is None:
            return requested or ""
        return self.runtimes.fitting(operator.launchers)[0]

    def _check_runtime(self, at: FieldPath, runtime: str | None) -> None:
        known = self.runtimes.entries
        if runtime is not None and runtime not in known:
            self._add_fault(at, f"unknown runtime {runtime!r}" + suggest(runtime, known))

    def _check_strategies(self, at: FieldPath, job: JobSection, operator: Operator | None) -> None:
        if operator and job.update_strategy not in operator.update_strategies:
            allowed = " or ".join(operator.update_strategies)
            rule = f"must be {allowed} for the operator {operator.name}, not {job.update_strategy}"
            self._add_fault((*at, "update_strategy"), rule)
        if self.parsed.has_invalid(at, "unique_key", "update_strategy"):
            return
        if job.update_strategy == "append" and not job.unique_key:
            rule = "is required with `append`, so that a replay adds no rows; list the key columns"
            self._add_fault((*at, "unique_key"), rule)
        if job.update_strategy == "replace" and job.unique_key:
            self._add_fault(
                (*at, "unique_key"), "is allowed only with `update_strategy: append`; remove it"
            )

    def _check_retry(self, at: FieldPath, job: JobSection) -> None:
        if job.retry and job.retry.attempts and job.max_attempts:
            rule = "is allowed only without `max_attempts`, which is the same; remove one of them"
            self._add_fault((*at, "retry", "attempts"), rule)
        retry = _build_retry(job, self.defaults)
        if retry and retry.delay and retry.max_delay and retry.delay > retry.max_delay:
            rule = f"must not be less than delay ({retry.delay} s), but is {retry.max_delay} s"
            self._add_fault((*at, "retry", "max_delay"), rule)

    # --- edges ------------------------------------------------------------------------------

    def _check_unique_outputs(self, at: FieldPath, job: JobSection) -> None:
        for n, name in enumerate(job.outputs):
            if name in job.outputs[:n]:
                self._add_fault((*at, "outputs", n), f"{name!r} is used twice; choose another name")

    def _check_unique_inputs(self, at: FieldPath, inputs: tuple[JobInput, ...]) -> None:
        names = [item.name for item in inputs]
        for n, name in enumerate(names):
            if name in names[:n]:
                rule = f"another input is also named {name!r}; set `name` on one of them"
                self._add_fault((*at, "inputs", n), rule)

    def _resolve_input(self, at: FieldPath, item: InputSection) -> JobInput:
        origin = item.from_
        if (origin.job is None) == (origin.dataset is None):
            self._add_fault((*at, "from"), "must name either a `job` or a `dataset`")
            return JobInput(item.name or f"input{at[-1]}")
        if origin.dataset is not None and origin.chosen_output is not None:
            field = "output" if origin.output is not None else "output_index"
            self._add_fault(
                (*at, "from", field), "is allowed only with `job`, not with `dataset`; remove it"
            )
        local = self.published.get(origin.dataset or "")
        if origin.dataset is not None and local is None:
            return JobInput(
                item.name or origin.dataset,
                dataset=origin.dataset,
                where=item.where,
                trigger=item.trigger,
                time=item.time,
            )
        # A name that this file publishes is an edge inside the DAG.
        output = self._resolve_output((*at, "from"), local or origin)
        name = item.name or origin.dataset or output
        return JobInput(
            name,
            job=(local or origin).job,
            output=output,
            where=item.where,
            trigger=item.trigger,
            time=item.time,
        )

    def _resolve_output(self, at: FieldPath, origin: FromSection) -> str:
        """Return the name of the output that `from` gives by name or by index."""
        producer = self.sections.get(origin.job or "")
        if producer is None:
            known = {name for name in self.parsed.job_names if name}
            if origin.job not in known:
                self._add_fault(
                    (*at, "job"), f"no job {origin.job!r}" + suggest(origin.job or "", known)
                )
            return str(origin.chosen_output)
        if origin.output is not None and origin.output_index is not None:
            self._add_fault(
                (*at, "output_index"), "is the same field as `output`; remove one of them"
            )
        field = "output" if origin.output is not None else "output_index"
        outputs, chosen = producer.outputs, origin.chosen_output
        if chosen is None:
            if len(outputs) > 1:
                names = ", ".join(outputs)
                self._add_fault(
                    at, f"{origin.job} has several outputs; set `output` to one of {names}"
                )
            return outputs[0]
        if isinstance(chosen, int):
            if chosen >= len(outputs):
                rule = f"{origin.job} has no output with the index {chosen}; the last index is"
                self._add_fault((*at, field), f"{rule} {len(outputs) - 1} ({outputs[-1]})")
                return outputs[0]
            return outputs[chosen]
        if chosen not in outputs:
            rule = f"{origin.job} has no output {chosen!r}"
            self._add_fault((*at, field), rule + suggest(chosen, outputs))
        return chosen

    def _check_cycles(self, jobs: tuple[Job, ...]) -> None:
        upstream: dict[str, list[str]] = {}
        for job in jobs:
            if job.activation == "reactive":
                upstream.setdefault(job.name, [i.job for i in job.inputs if i.job])
        for cycle in find_cycles(upstream):
            n = self.parsed.job_names.index(cycle[0])
            names = " → ".join([*cycle, cycle[0]])
            rule = f"these jobs wait for each other: {names}; remove one of these inputs"
            self._add_fault(("jobs", n, "inputs"), rule)

    # --- publications -----------------------------------------------------------------------

    def _check_publication(self, at: FieldPath, entry: PublishSection) -> Publication:
        origin = entry.from_
        if origin.job is None:
            rule = "must name a job of this file, as `from: {job: …, output: …}`"
            self._add_fault((*at, "from"), rule)
            return Publication(entry.name, "", "")
        output = self._resolve_output((*at, "from"), origin)
        job = self.sections.get(origin.job)
        mode = entry.write_mode or (job.update_strategy if job else "replace")
        storage = entry.storage or ("postgres" if mode == "buffered" else "parquet")
        columns = tuple(Column(c.name, c.type, c.nullable, c.comment) for c in entry.schema_ or ())
        if entry.name in SHIPPED and mode == "buffered":
            columns = columns or SHIPPED[entry.name].columns
        faults = list(find_duplicate_columns(columns))
        if job and not self.parsed.has_invalid(at, "write_mode", "storage", "schema"):
            faults = [*find_publication_faults(entry, job, mode, storage), *faults]
        for path, message in faults:
            self._add_fault((*at, *path), message)
        return Publication(
            entry.name,
            origin.job,
            output,
            entry.description,
            storage,
            mode,
            columns or None,
            tuple(entry.read_roles) if entry.read_roles else None,
            self._resolve_hot_part((*at, "hot"), entry, mode),
        )

    def _resolve_hot_part(
        self, at: FieldPath, entry: PublishSection, mode: str
    ) -> tuple[str, str] | None:
        hot = entry.hot
        if hot is None:
            return None
        if hot.job is None:
            self._add_fault(at, "must name a job of this file, as `hot: {job: …, output: …}`")
            return None
        output = self._resolve_output(at, hot)
        job = self.sections.get(hot.job)
        if job and (rule := find_hot_part_fault(job, mode)):
            self._add_fault(at, rule)
        return hot.job, output


def _name_output(outputs: list[str], chosen: str | int | None) -> str:
    """Return the name of a chosen output; an index that does not exist is reported elsewhere."""
    if isinstance(chosen, str):
        return chosen
    return outputs[chosen or 0] if (chosen or 0) < len(outputs) else str(chosen)


def _count_attempts(job: JobSection, defaults: Defaults) -> int:
    own = job.retry.attempts if job.retry else None
    usual = defaults.retry.attempts if defaults.retry else None
    return job.max_attempts or own or usual or defaults.max_attempts


def _build_retry(job: JobSection, defaults: Defaults) -> Retry | None:
    """Return the delays of a job. A delay without a longest one, or the reverse, gets the usual other."""
    chosen = [section for section in (job.retry, defaults.retry) if section is not None]
    delay = next((r.delay for r in chosen if r.delay), None)
    max_delay = next((r.max_delay for r in chosen if r.max_delay), None)
    if delay is not None or max_delay is not None:
        delay = delay or min(_USUAL_DELAY, max_delay or _USUAL_DELAY)
        max_delay = max_delay or max(_USUAL_MAX_DELAY, delay)
    unreachable = next((r.unreachable for r in chosen if r.unreachable), None)
    retry = Retry(delay, max_delay, unreachable)
    return None if retry == Retry() else retry


def _build_source(source: SourceSection) -> Source:
    options = {
        name: value for name in _SOURCE_OPTIONS if (value := getattr(source, name)) is not None
    }
    if source.scope is not None:
        options["scope"] = source.scope.model_dump(exclude_none=True)
    return Source(source.kind, source.schedule, options)
