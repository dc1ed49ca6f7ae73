"""Check the invariants of the task lifecycle against a recorded history.

A history must contain every call about the tasks that it mentions. An unanswered call may or may not
have been executed: it never counts as a violation, but it can explain a row.
"""

from collections.abc import Iterator

from trace_etl.devtools.history import completions, effects, events, leases, publications
from trace_etl.devtools.history.facts import Facts, collect_facts
from trace_etl.devtools.history.lines import CallOutcome, History
from trace_etl.devtools.history.report import HistoryReport, Violation
from trace_etl.devtools.history.rows import ROW_TYPES, Dump


def check(history: History, *, clock_skew: float = 1.0) -> HistoryReport:
    """Check a history and report the violations.

    `clock_skew` is the maximum difference between the clocks of recorder and Postgres, in seconds.
    Raises Unreadable for an accepted call with a malformed body.
    """
    facts = collect_facts(history.calls)
    violations = sorted(
        set(_find_violations(facts, history.dump, clock_skew)), key=lambda v: v.lines
    )
    return HistoryReport(
        violations=violations,
        calls=len(history.calls),
        unanswered=sum(call.outcome == CallOutcome.MAYBE for call in history.calls),
        tasks=len(facts.grants),
        attempts=sum(len(grants) for grants in facts.grants.values()),
        unchecked=_list_unchecked(history.dump),
    )


def _find_violations(facts: Facts, dump: Dump | None, clock_skew: float) -> Iterator[Violation]:
    yield from leases.one_live_lease(facts, clock_skew)
    yield from leases.attempts_only_grow(facts, dump)
    yield from leases.stale_fence(facts)
    yield from completions.one_completion(facts, dump)
    yield from events.events_once(facts, dump)
    yield from publications.buffer_effects(facts, dump)
    if dump is not None:
        yield from effects.event_effects(facts, dump)
        yield from publications.partition_effects(facts, dump)
        yield from publications.wake_up_effects(dump)


def _list_unchecked(dump: Dump | None) -> list[str]:
    if dump is None:
        return ["side effects: the history has no dump of the database"]
    return [f"table {name}: not dumped" for name in ROW_TYPES if name not in dump.tables]
