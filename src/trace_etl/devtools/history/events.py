"""Check that each event of a task is accepted as new at most once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.task import events as event_bodies
from trace_etl.api.task import lifecycle
from trace_etl.devtools.history.facts import Facts, FencedCall
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


def find_event_calls(facts: Facts, task_id: UUID) -> list[EventCall]:
    """Return every call of a task that contained events."""
    calls = [
        EventCall(fenced, event_keys(body.events), _read_accepted_count(fenced))
        for fenced, body in facts.calls_of(task_id, event_bodies.Events)
    ]
    calls += [
        EventCall(fenced, event_keys(body.events), None)
        for fenced, body in facts.calls_of(task_id, lifecycle.Complete)
    ]
    return [call for call in calls if call.keys]


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
        for call in calls:
            yield from _find_miscounts(task_id, call, [c for c in calls if c is not call])
    if dump is not None and dump.has(EventRow):
        yield from _find_duplicates(dump)


def _find_miscounts(
    task_id: UUID, call: EventCall, other_calls: list[EventCall]
) -> Iterator[Violation]:
    if call.accepted_count is None:
        return
    earlier = [
        c for c in other_calls if c.fenced.accepted and c.fenced.call.ended_before(call.fenced.call)
    ]
    old = {key for c in earlier for key in c.keys if key.is_complete}
    if call.accepted_count > len(call.keys - old):
        text = f"task {task_id}: counted an event as new that had been accepted before"
        calls = [call, *(c for c in earlier if c.keys & call.keys)]
        yield Violation(
            Invariant.EVENTS_ONCE, text, tuple(sorted(c.fenced.call.line for c in calls))
        )


def _find_duplicates(dump: Dump) -> Iterator[Violation]:
    lines_by_event: dict[tuple[UUID, UUID, UUID, str], list[int]] = defaultdict(list)
    for line, row in dump.rows_of(EventRow):
        event = (row.producer_task_id, row.dataset_uuid, row.dataset_version, row.scope_key)
        lines_by_event[event].append(line)
    for event, lines in lines_by_event.items():
        if len(lines) > 1:
            text = f"task {event[0]}: event {event[3]} exists {len(lines)} times"
            yield Violation(Invariant.EVENTS_ONCE, text, tuple(lines))
