"""Check the rules that the schema of a DAG file cannot express, and collect all faults."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from trace_etl.dag.buffered_datasets import (
    SHIPPED,
    find_conflicting_publications,
    find_unbuffered_outputs,
)
from trace_etl.dag.checks.cycles import find_cycles
from trace_etl.dag.checks.data_checks import find_check_faults
from trace_etl.dag.checks.file_formats import find_unreadable_inputs
from trace_etl.dag.checks.job_fields import (
    build_job,
    find_handler_fault,
    find_key_faults,
    find_retry_faults,
    find_strategy_faults,
)
from trace_etl.dag.checks.notifications import find_idle_rules, find_rule_faults, make_rules
from trace_etl.dag.checks.partition_sizes import find_size_conflicts
from trace_etl.dag.checks.publications import (
    find_duplicate_columns,
    find_hot_part_fault,
    find_publication_faults,
)
from trace_etl.dag.checks.sources import find_activation_faults
from trace_etl.dag.checks.triggers import find_trigger_faults, resolve_triggers
from trace_etl.dag.error_messages import describe_error, suggest
from trace_etl.dag.operators import NAMEABLE, OPERATORS, PACKAGED, Operator
from trace_etl.dag.positions import FieldPath, Located
from trace_etl.dag.runtimes import Runtimes
from trace_etl.dag.schema import (
    Defaults,
    FromSection,
    InputSection,
    JobSection,
    NotifySection,
    PublishSection,
)
from trace_etl.model.dag import (
    Column,
    Dag,
    Job,
    JobInput,
    Publication,
)
from trace_etl.model.errors import Fault


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
    incomplete_jobs: dict[int, JobSection] = field(default_factory=dict[int, JobSection])
    """Jobs without a valid name or outputs, with stand-ins for these. Their other fields are checked."""
    incomplete_publish: dict[int, PublishSection] = field(default_factory=dict[int, PublishSection])

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
        self._check_incomplete_sections()
        self._check_cycles(jobs)
        names = {entry.name for entry in publish}
        self._add_faults((), find_rule_faults(self.parsed.notify, names))
        dag = Dag(self.parsed.name, jobs, publish, make_rules(self.parsed.notify))
        if len(publish) == len(self.parsed.publish):
            for n, rule in find_conflicting_publications(dag):
                self._add_fault(("publish", n), rule)
        if not self.faults and len(jobs) == len(self.parsed.jobs):
            self._add_faults((), find_check_faults(dag, list(self.sections.values())))
            self._add_faults((), find_idle_rules(dag))
            for n, m, rule in find_unbuffered_outputs(dag):
                self._add_fault(("jobs", n, "outputs", m), rule)
            for n, rule in find_size_conflicts(dag):
                self._add_fault(("jobs", n, "inputs"), rule)
            for n, i, rule in find_unreadable_inputs(dag):
                self._add_fault(("jobs", n, "inputs", i, "from"), rule)
        return dag

    def _add_fault(self, path: FieldPath, message: str) -> None:
        self.faults.append(self.located.fault(path, message))

    def _add_faults(self, at: FieldPath, faults: Iterable[tuple[FieldPath, str]]) -> None:
        """Add faults whose paths begin at a section."""
        for path, message in faults:
            self._add_fault((*at, *path), message)

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
            self._add_faults(at, find_activation_faults(job, activation))
        operator_name = job.operator or ("source" if self._only_forwards(job, activation) else "")
        operator = self._find_operator(at, job, operator_name)
        inputs = tuple(self._resolve_input((*at, "inputs", n), i) for n, i in enumerate(job.inputs))
        if not self.parsed.has_invalid(at, "inputs", "source", "execution_strategy"):
            inputs = resolve_triggers(job, operator, inputs, self.sections)
            faults = find_trigger_faults(job, operator, inputs, self.sections)
            self._add_faults(at, faults)
        if operator:
            self._check_operator(at, job, operator, inputs)
        self._check_unique_inputs(at, inputs)
        self._check_unique_outputs(at, job)
        self._add_faults(at, find_strategy_faults(job, operator))
        if not self.parsed.has_invalid(at, "unique_key", "update_strategy"):
            self._add_faults(at, find_key_faults(job))
        self._add_faults(at, find_retry_faults(job, self.defaults))
        return build_job(
            job,
            self.defaults,
            activation=activation,
            operator=operator_name,
            runtime=self._choose_runtime(job, operator),
            inputs=inputs,
        )

    def _only_forwards(self, job: JobSection, activation: str) -> bool:
        """Return whether the job is a source that only forwards events."""
        return activation == "source" and (job.source is None or job.source.kind != "always_on")

    def _check_incomplete_sections(self) -> None:
        """Check what sections without a valid name or outputs refer to."""
        for n, job in self.parsed.incomplete_jobs.items():
            if job.operator:
                self._find_operator(("jobs", n), job, job.operator)
            for m, item in enumerate(job.inputs):
                self._resolve_input(("jobs", n, "inputs", m), item)
        for n, entry in self.parsed.incomplete_publish.items():
            if entry.from_.job:
                self._resolve_output(("publish", n, "from"), entry.from_)

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
        if name in PACKAGED.faults:
            return (
                f"operator {name!r} cannot be used: {PACKAGED.faults[name]}; see `trace operators`"
            )
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
        if job.secrets and not (op.takes_secrets and runtime.is_trusted):
            reason = f"the operator {op.name} takes no secrets"
            if not runtime.is_trusted:
                reason = f"{name} runs untrusted code"
            self._add_fault((*at, "secrets"), f"must be empty: {reason}; remove them")
        if job.udf and op.needs_udf and (rule := find_handler_fault(job.udf.handler, runtime)):
            self._add_fault((*at, "udf", "handler"), rule)
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
