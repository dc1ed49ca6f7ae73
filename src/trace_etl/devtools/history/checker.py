"""Proves or refutes the lifecycle's invariants from what was recorded.

A history must hold every call about the tasks it mentions. An unanswered call may have happened or
not: it never refutes anything, and it may explain a row.
"""

from collections.abc import Iterator

from trace_etl.devtools.history import completions, effects, events, leases, publications
from trace_etl.devtools.history.facts import Facts, gather
from trace_etl.devtools.history.lines import History, Outcome
from trace_etl.devtools.history.rows import ROW_TYPES, Dump
from trace_etl.devtools.history.verdict import Verdict, Violation


def check(history: History, *, clock_skew: float = 1.0) -> Verdict:
    """The verdict on a history.

    `clock_skew` is how far the recorder's clock and Postgres's may be apart, in seconds.
    Raises Unreadable for an accepted call that makes no sense.
    """
    facts = gather(history.calls)
    found = sorted(set(_violations(facts, history.dump, clock_skew)), key=lambda v: v.lines)
    return Verdict(
        violations=found,
        calls=len(history.calls),
        unanswered=sum(call.outcome == Outcome.MAYBE for call in history.calls),
        tasks=len(facts.grants),
        attempts=sum(len(grants) for grants in facts.grants.values()),
        unchecked=_unchecked(history.dump),
    )


def _violations(facts: Facts, dump: Dump | None, clock_skew: float) -> Iterator[Violation]:
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


def _unchecked(dump: Dump | None) -> list[str]:
    if dump is None:
        return ["side effects: the history has no dump of the database"]
    return [f"table {name}: not dumped" for name in ROW_TYPES if name not in dump.tables]
