"""Rules of notifications that the schema cannot express."""

from collections.abc import Iterator, Sequence

from trace_etl.dag.positions import FieldPath
from trace_etl.dag.schema import NotifySection
from trace_etl.model.dag import NotificationRule

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
