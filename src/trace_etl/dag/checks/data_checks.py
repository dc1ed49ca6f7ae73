"""Data checks of outputs: build them, and find those that cannot run."""

from collections.abc import Iterator, Sequence
from typing import Any

from trace_etl.dag.error_messages import suggest
from trace_etl.dag.operators import OPERATORS, Operator
from trace_etl.dag.positions import FieldPath
from trace_etl.dag.schema import CheckSection, JobSection
from trace_etl.model.dag import Check, Dag, Job
from trace_etl.model.storage import PARQUET

CHECK_KINDS = ("condition", "unique", "not_null", "rows", "freshness", "references")
_MAX_NAME = 128
CheckFault = tuple[FieldPath, str]
"""A path in the file, and an error text."""


def build_check(section: CheckSection, job: JobSection) -> Check:
    """Build a check. It is valid only if `find_check_faults` finds nothing."""
    kind = next(iter(_list_kinds(section)), "")
    rule = _build_rule(section, kind)
    columns = rule.get("columns", [rule["column"]] if "column" in rule else [])
    return Check(
        name=section.name or "_".join([kind, *columns]).lower()[:_MAX_NAME],
        output=_find_output(section, job) or "",
        kind=kind,
        rule=rule,
        on_failure=section.on_failure,
        consumers=tuple(section.consumers or ()),
        key=tuple(section.key or ()),
    )


def _list_kinds(section: CheckSection) -> list[str]:
    return [kind for kind in CHECK_KINDS if getattr(section, kind) is not None]


def _build_rule(section: CheckSection, kind: str) -> dict[str, Any]:
    if kind == "condition":
        return {"sql": section.condition}
    if kind in ("unique", "not_null"):
        return {"columns": list(getattr(section, kind))}
    if section.freshness is not None and kind == "freshness":
        return {"column": section.freshness.column, "within_seconds": section.freshness.within}
    chosen = getattr(section, kind) if kind else None
    return chosen.model_dump(exclude_none=True) if chosen is not None else {}


def _find_output(section: CheckSection, job: JobSection) -> str | None:
    """Return the output that a check is for; None: there is no such output, or it is ambiguous."""
    chosen = section.output
    if chosen is None:
        return job.outputs[0] if len(job.outputs) == 1 else None
    if isinstance(chosen, int):
        return job.outputs[chosen] if chosen < len(job.outputs) else None
    return chosen if chosen in job.outputs else None


def find_check_faults(dag: Dag, sections: Sequence[JobSection]) -> Iterator[CheckFault]:
    """Yield the checks that cannot run. The jobs must be valid otherwise."""
    for n, (job, section) in enumerate(zip(dag.jobs, sections, strict=True)):
        if not job.checks:
            continue
        at: FieldPath = ("jobs", n, "checks")
        if rule := _explain_unchecked(OPERATORS[job.operator], job):
            yield at, f"{rule}; remove them"
            continue
        names: set[tuple[str, str]] = set()
        for i, (check, given) in enumerate(zip(job.checks, section.checks, strict=True)):
            yield from (((*at, i, *path), rule) for path, rule in _find_faults(job, check, given))
            yield from (
                ((*at, i, *path), rule) for path, rule in _find_consumer_faults(dag, job, check)
            )
            if (check.output, check.name) in names:
                yield (*at, i), f"another check is also named {check.name!r}; set another `name`"
            names.add((check.output, check.name))


def _explain_unchecked(operator: Operator, job: Job) -> str | None:
    """Return why no output of a job can be checked; None if they can."""
    name = operator.name
    if operator.forwards_scopes or operator.writes_nothing:
        return f"the operator {name} writes no rows, so nothing can be checked"
    if operator.never_ends:
        return f"the operator {name} never ends, so its rows cannot be checked before they are read"
    if not operator.is_for_workers:
        return f"the operator {name} runs a function, whose rows the sink checks"
    if operator.output_format(job.config) != PARQUET:
        return f"only Parquet files can be checked, not {operator.output_format(job.config)}"
    return None


def _find_faults(job: Job, check: Check, given: CheckSection) -> Iterator[CheckFault]:
    kinds = _list_kinds(given)
    if len(kinds) != 1:
        found = ", ".join(kinds) or "none"
        yield (), f"must have exactly one of {', '.join(CHECK_KINDS)}, but has {found}"
        return
    if not check.output:
        names = ", ".join(job.outputs)
        yield ("output",), f"must be one of the outputs of {job.name}: {names}"
    if check.kind == "rows":
        yield from _find_bound_faults(check.rule)
    if check.kind == "references":
        yield from _find_reference_faults(job, check)


def _find_bound_faults(rule: dict[str, Any]) -> Iterator[CheckFault]:
    if not rule:
        yield ("rows",), "must have `min`, `max` or both"
    elif rule.get("min", 0) > rule.get("max", rule.get("min", 0)):
        text = f"must not be less than min ({rule['min']}), but is {rule['max']}"
        yield ("rows", "max"), text


def _find_reference_faults(job: Job, check: Check) -> Iterator[CheckFault]:
    rule = check.rule
    if ("input" in rule) == ("output" in rule):
        yield ("references",), "must name either an `input` or another `output` of the job"
        return
    inputs = [item.name for item in job.data_inputs]
    others = [name for name in job.outputs if name != check.output]
    for field, known in (("input", inputs), ("output", others)):
        if field in rule and rule[field] not in known:
            found = f"the job has no {'other ' if field == 'output' else ''}{field} {rule[field]!r}"
            advice = suggest(rule[field], known) if known else "; it has none with rows"
            yield ("references", field), found + advice
    if len(rule["columns"]) != len(rule.get("to", rule["columns"])):
        yield ("references", "to"), "must have as many columns as `columns`"


def _find_consumer_faults(dag: Dag, job: Job, check: Check) -> Iterator[CheckFault]:
    if check.on_failure != "block_consumers":
        if check.consumers:
            yield ("consumers",), "is allowed only with `on_failure: block_consumers`; remove it"
        return
    if job.update_strategy == "append":
        rule = "needs an output with partitions, but the job has `update_strategy: append`"
        yield ("on_failure",), f"{rule}; use `block` or `warn`"
        return
    readers = _list_readers(dag, job.name, check.output)
    if not check.consumers:
        known = ", ".join(readers) or "none"
        yield ("consumers",), f"is required with `block_consumers`; jobs that read it: {known}"
    for n, name in enumerate(check.consumers):
        if name not in readers:
            advice = suggest(name, readers) if readers else "; no job of this file reads them"
            yield ("consumers", n), f"{name!r} does not read rows of {check.output}{advice}"


def _list_readers(dag: Dag, producer: str, output: str) -> list[str]:
    return [
        job.name
        for job in dag.jobs
        if not OPERATORS[job.operator].forwards_scopes
        and any((i.job, i.output) == (producer, output) for i in job.data_inputs)
    ]
