"""Rules of notifications that the schema cannot express."""

from collections.abc import Iterator, Sequence

from trace_etl.dag.operators import OPERATORS
from trace_etl.dag.positions import FieldPath
from trace_etl.dag.schema import NotifySection
from trace_etl.model.dag import Dag, Job, NotificationRule, Publication

_GAP_GRACE = 600
_NEEDED = {"late": "after", "reorganisation": "deeper_than"}
_ALLOWED = {
    "failure": (),
    "check": ("datasets",),
    "late": ("after", "datasets"),
    "gap": ("after", "datasets"),
    "reorganisation": ("deeper_than", "datasets"),
}


def find_rule_faults(
    rules: Sequence[NotifySection | None], published: set[str]
) -> Iterator[tuple[FieldPath, str]]:
    """Yield the faults of all rules, with their paths."""
    names: set[str] = set()
    for n, rule in enumerate(rules):
        if rule is None:
            continue
        if rule.name in names:
            yield ("notify", n, "name"), f"{rule.name!r} is used twice; choose another name"
        names.add(rule.name)
        yield from _find_field_faults(n, rule)
        for i, dataset in enumerate(rule.datasets or ()):
            if dataset not in published:
                known = ", ".join(sorted(published)) or "none"
                message = f"{dataset!r} is not published by this DAG; published names: {known}"
                yield ("notify", n, "datasets", i), message


def _find_field_faults(n: int, rule: NotifySection) -> Iterator[tuple[FieldPath, str]]:
    needed = _NEEDED.get(rule.event)
    if needed and getattr(rule, needed) is None:
        yield ("notify", n), f"`event: {rule.event}` needs `{needed}`; add it"
    for name in ("after", "deeper_than", "datasets"):
        if getattr(rule, name) is not None and name not in _ALLOWED[rule.event]:
            yield ("notify", n, name), f"has no meaning for `event: {rule.event}`; remove it"


def make_rules(rules: Sequence[NotifySection | None]) -> tuple[NotificationRule, ...]:
    """Return the rules of a DAG."""
    return tuple(
        NotificationRule(
            rule.name,
            rule.event,
            rule.url,
            rule.secret,
            _GAP_GRACE if rule.event == "gap" and rule.after is None else rule.after,
            rule.deeper_than,
            None if rule.datasets is None else tuple(rule.datasets),
        )
        for rule in rules
        if rule
    )


def find_idle_rules(dag: Dag) -> Iterator[tuple[FieldPath, str]]:
    """Yield the rules of a valid DAG that nothing in it can fire."""
    for n, rule in enumerate(dag.notify):
        watched = [p for p in dag.publish if rule.datasets is None or p.name in rule.datasets]
        if fault := _explain_idle(dag, rule, watched):
            yield ("notify", n, "event" if rule.datasets is None else "datasets"), fault


def _explain_idle(dag: Dag, rule: NotificationRule, watched: list[Publication]) -> str | None:
    match rule.event:
        case "reorganisation" if not _can_reorganise(dag, rule, watched):
            return (
                f"nothing can fire this rule: {_name_watched(rule)} an output of a block_follower or of "
                "a job with `finality: provisional`; name a dataset with such an output, or remove the rule"
            )
        case "late" | "gap" if not any(_has_partitions(dag, p) for p in watched):
            return (
                f"nothing can fire this rule: {_name_watched(rule)} a published dataset with partitions; "
                "publish one, or remove the rule"
            )
        case "check" if not _has_checks(dag, rule, watched):
            return (
                f"nothing can fire this rule: {_name_watched(rule)} an output with `checks`; "
                "add a check, or remove the rule"
            )
        case _:
            return None


def _name_watched(rule: NotificationRule) -> str:
    if rule.datasets is None:
        return "this DAG does not have"
    return f"{', '.join(rule.datasets)} {'is' if len(rule.datasets) == 1 else 'are'} not"


def _can_reorganise(dag: Dag, rule: NotificationRule, watched: list[Publication]) -> bool:
    """Return whether the rule watches an output that is read up to the tip of a chain."""
    if rule.datasets is None:
        return any(_reads_tip(job) for job in dag.jobs)
    jobs = {job for p in watched for job in (p.job, p.hot[0] if p.hot else p.job)}
    return any(_reads_tip(dag.job(name)) for name in jobs)


def _reads_tip(job: Job) -> bool:
    operator = OPERATORS[job.operator]
    is_provisional = job.config.get("finality") == "provisional"
    return operator.writes_tables or (is_provisional and "finality" in operator.config.model_fields)


def _has_partitions(dag: Dag, published: Publication) -> bool:
    is_table = OPERATORS[dag.job(published.job).operator].writes_tables
    return published.write_mode == "replace" and not is_table


def _has_checks(dag: Dag, rule: NotificationRule, watched: list[Publication]) -> bool:
    if rule.datasets is None:
        return any(job.checks for job in dag.jobs)
    return any(c.output == p.output for p in watched for c in dag.job(p.job).checks)
