"""Each event of a task is accepted as new at most once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.task import events as news
from trace_etl.api.task import lifecycle as wire
from trace_etl.devtools.history.facts import Facts, Said
from trace_etl.devtools.history.rows import Dump, EventRow
from trace_etl.devtools.history.verdict import Invariant, Violation


@dataclass(frozen=True)
class EventKey:
    """What makes an event of a task the same. Without a uuid or version it is only known in part:
    the Dispatcher filled in the rest."""

    dataset_uuid: UUID | None
    dataset_version: UUID | None
    scope_key: str

    @property
    def whole(self) -> bool:
        return self.dataset_uuid is not None and self.dataset_version is not None

    def may_be(self, other: "EventKey") -> bool:
        return self.scope_key == other.scope_key and all(
            a is None or b is None or a == b
            for a, b in (
                (self.dataset_uuid, other.dataset_uuid),
                (self.dataset_version, other.dataset_version),
            )
        )


def keys(events: Iterable[wire.Event]) -> set[EventKey]:
    """The distinct events of a call."""
    return {EventKey(e.dataset_uuid, e.dataset_version, e.scope_key) for e in events}


@dataclass(frozen=True)
class Told:
    """A call that carried events, and how many of them it was told were new."""

    said: Said
    keys: set[EventKey]
    counted: int | None


def told(facts: Facts, task_id: UUID) -> list[Told]:
    """Every call of a task that carried events."""
    found = [
        Told(said, keys(body.events), _counted(said))
        for said, body in facts.of(task_id, news.Events)
    ]
    found += [
        Told(said, keys(body.events), None) for said, body in facts.of(task_id, wire.Complete)
    ]
    return [one for one in found if one.keys]


def _counted(said: Said) -> int | None:
    return news.EventsAccepted.model_validate(said.call.body).accepted if said.accepted else None


def events_once(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """The counts of new events add up, and the table holds each once."""
    for task_id in list(facts.said):
        calls = told(facts, task_id)
        for one in calls:
            yield from _miscounted(task_id, one, [c for c in calls if c is not one])
    if dump is not None and dump.has(EventRow):
        yield from _doubled(dump)


def _miscounted(task_id: UUID, one: Told, others: list[Told]) -> Iterator[Violation]:
    if one.counted is None:
        return
    known = [c for c in others if c.said.accepted and c.said.call.surely_before(one.said.call)]
    old = {key for c in known for key in c.keys if key.whole}
    if one.counted > len(one.keys - old):
        text = f"task {task_id}: counted an event as new that had been accepted before"
        yield _violation(text, one, *(c for c in known if c.keys & one.keys))


def _doubled(dump: Dump) -> Iterator[Violation]:
    found: dict[tuple[UUID, UUID, UUID, str], list[int]] = defaultdict(list)
    for line, row in dump.of(EventRow):
        same = (row.producer_task_id, row.dataset_uuid, row.dataset_version, row.scope_key)
        found[same].append(line)
    for same, lines in found.items():
        if len(lines) > 1:
            text = f"task {same[0]}: the event {same[3]} is there {len(lines)} times"
            yield Violation(Invariant.EVENTS_ONCE, text, tuple(lines))


def _violation(text: str, *calls: Told) -> Violation:
    return Violation(Invariant.EVENTS_ONCE, text, tuple(sorted(c.said.call.line for c in calls)))
