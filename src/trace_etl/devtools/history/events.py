"""Check that each event of a task is accepted as new at most once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from trace_etl.api.task import events as event_bodies
from trace_etl.api.task import lifecycle
from trace_etl.devtools.history.facts import Facts, FencedCall
from trace_etl.devtools.history.publications import list_publications
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import Dump, EventRow


@dataclass(frozen=True)
class EventKey:
    """Identity of an event within its task. UUID or version is None if the call left it out and the
    Dispatcher filled it in."""

    dataset_uuid: UUID | None
    dataset_version: UUID | None
    scope_key: str

    @property
    def is_complete(self) -> bool:
        return self.dataset_uuid is not None and self.dataset_version is not None

    def may_be(self, other: "EventKey") -> bool:
        return self.scope_key == other.scope_key and all(
            a is None or b is None or a == b
            for a, b in (
                (self.dataset_uuid, other.dataset_uuid),
                (self.dataset_version, other.dataset_version),
            )
        )


def event_keys(events: Iterable[lifecycle.Event]) -> set[EventKey]:
    """Return the distinct events of a call."""
    return {EventKey(e.dataset_uuid, e.dataset_version, e.scope_key) for e in events}


@dataclass(frozen=True)
class EventCall:
    """A call that contained events, and how many of them the response counted as new."""

    fenced: FencedCall
    keys: set[EventKey]
    accepted_count: int | None
    implied: set[EventKey] = field(default_factory=set[EventKey])
    """Events that the Dispatcher may record for publications without an event."""


def find_event_calls(facts: Facts, task_id: UUID) -> list[EventCall]:
    """Return every call of a task that contained events."""
    found = [
        EventCall(fenced, event_keys(body.events), _read_accepted_count(fenced))
        for fenced, body in facts.calls_of(task_id, event_bodies.Events)
    ]
    found += [
        EventCall(fenced, event_keys(body.events), None, _list_implied_keys(facts, fenced, body))
        for fenced, body in facts.calls_of(task_id, lifecycle.Complete)
    ]
    return [one for one in found if one.keys or one.implied]


def _list_implied_keys(facts: Facts, fenced: FencedCall, body: lifecycle.Complete) -> set[EventKey]:
    announced = {event.dataset_uuid for event in body.events}
    return {
        EventKey(one.item.dataset_uuid, one.item.dataset_version, f"p:{one.key}")
        for one in list_publications(facts, fenced, body)
        if one.item.dataset_uuid not in announced
    }


def _read_accepted_count(fenced: FencedCall) -> int | None:
    return (
        event_bodies.EventsAccepted.model_validate(fenced.call.body).accepted
        if fenced.accepted
        else None
    )


def events_once(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """Check the counts of new events, and that the table contains each event once."""
    for task_id in list(facts.fenced):
        calls = find_event_calls(facts, task_id)
        for one in calls:
            others = [c for c in calls if c is not one]
            yield from _find_miscounts(task_id, one, others, _may_repeat_cursors(facts, one))
    if dump is not None and dump.has(EventRow):
        yield from _find_duplicates(dump)


def _may_repeat_cursors(facts: Facts, one: EventCall) -> bool:
    """Whether the task may have invalidated rows before: a repeated cursor is then a new event."""
    return any(
        body.invalidations and not one.fenced.call.ended_before(fenced.call)
        for fenced, body in facts.calls_of(one.fenced.key[0], event_bodies.Events)
    )


def _find_miscounts(
    task_id: UUID, one: EventCall, others: list[EventCall], repeats_cursors: bool
) -> Iterator[Violation]:
    if one.accepted_count is None:
        return
    earlier = [
        c for c in others if c.fenced.accepted and c.fenced.call.ended_before(one.fenced.call)
    ]
    old = {key for c in earlier for key in c.keys if key.is_complete}
    if repeats_cursors:
        old = {key for key in old if not key.scope_key.startswith("c:")}
    if one.accepted_count > len(one.keys - old):
        text = f"task {task_id}: counted an event as new that had been accepted before"
        yield _make_violation(text, one, *(c for c in earlier if c.keys & one.keys))


def _find_duplicates(dump: Dump) -> Iterator[Violation]:
    found: dict[tuple[UUID, UUID, UUID, str], list[int]] = defaultdict(list)
    for line, row in dump.rows_of(EventRow):
        same = (row.producer_task_id, row.dataset_uuid, row.dataset_version, row.scope_key)
        found[same].append(line)
    for same, lines in found.items():
        if len(lines) > 1:
            text = f"task {same[0]}: event {same[3]} exists {len(lines)} times"
            yield Violation(Invariant.EVENTS_ONCE, text, tuple(lines))


def _make_violation(text: str, *calls: EventCall) -> Violation:
    return Violation(Invariant.EVENTS_ONCE, text, tuple(sorted(c.fenced.call.line for c in calls)))
