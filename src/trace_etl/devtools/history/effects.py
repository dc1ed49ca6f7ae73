"""Side effects exist exactly when their transaction committed: the dump against the calls."""

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from trace_etl.devtools.history.events import EventKey, Told, told
from trace_etl.devtools.history.facts import Attempt, Facts
from trace_etl.devtools.history.rows import (
    ConsumerRow,
    DatasetRow,
    Dump,
    EventRow,
    OutboxRow,
    PartitionRow,
    TaskRow,
)
from trace_etl.devtools.history.verdict import Invariant, Violation


def event_effects(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Events ↔ what was accepted; routing ↔ events; tasks ↔ routing."""
    if not dump.has(EventRow):
        return
    yield from _unsent_events(facts, dump)
    yield from _lost_events(facts, dump)
    if dump.has(OutboxRow):
        yield from _routing(dump)
    if dump.has(TaskRow):
        yield from _consumers(dump)
        yield from _causeless_tasks(dump)


def _key(row: EventRow) -> EventKey:
    return EventKey(row.dataset_uuid, row.dataset_version, row.told_key)


def _unsent_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """A row whose attempt never sent it, or whose call was refused."""
    sent: dict[Attempt, list[Told]] = defaultdict(list)
    for task_id in list(facts.said):
        for one in told(facts, task_id):
            sent[one.said.key].append(one)
    for line, row in dump.of(EventRow):
        if row.producer_task_id not in facts.grants:
            continue  # triggered by people, or run where nobody recorded
        calls = sent[row.producer_task_id, row.attempt]
        if not any(key.may_be(_key(row)) for one in calls for key in one.keys):
            text = f"the event {row.event_id} exists, but no accepted call carried it"
            yield _violation(text, line)


def _lost_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    kept: dict[UUID, list[EventKey]] = defaultdict(list)
    for _, row in dump.of(EventRow):
        kept[row.producer_task_id].append(_key(row))
    for task_id in list(facts.said):
        for one in told(facts, task_id):
            lost = [k for k in one.keys if not any(k.may_be(row) for row in kept[task_id])]
            if one.said.accepted and lost:
                scopes = ", ".join(sorted(k.scope_key for k in lost))
                text = f"task {task_id}: events were accepted and are not there: {scopes}"
                yield _violation(text, one.said.call.line)


def _routing(dump: Dump) -> Iterator[Violation]:
    """An event waits in the outbox, or was routed, or is of a generation nobody reads."""
    current = {row.dataset_uuid: row.dataset_version for _, row in dump.of(DatasetRow)}
    asked: dict[UUID, list[int]] = defaultdict(list)
    for line, row in dump.of(OutboxRow):
        if row.kind == "route_event":
            asked[row.subject].append(line)
    events = {row.event_id: (line, row) for line, row in dump.of(EventRow)}
    for event_id, lines in asked.items():
        if event_id not in events:
            yield _violation(f"asked to route {event_id}, an event that does not exist", *lines)
        if len(lines) > 1:
            yield _violation(f"asked to route {event_id} {len(lines)} times", *lines)
    for event_id, (line, row) in events.items():
        live = current.get(row.dataset_uuid) == row.dataset_version
        if row.routed_at is None and event_id not in asked and live:
            yield _violation(f"nobody asked to route {event_id}, and it was not routed", line)


def _consumers(dump: Dump) -> Iterator[Violation]:
    """A routed event has a task for each job that reads its dataset, and no two."""
    jobs: dict[UUID, set[UUID]] = defaultdict(set)
    for _, row in dump.of(ConsumerRow):
        jobs[row.dataset_uuid].add(row.job_id)
    tasks: dict[tuple[UUID | None, UUID | None, UUID | None, str], list[tuple[int, TaskRow]]]
    tasks = defaultdict(list)
    for line, row in dump.of(TaskRow):
        if row.is_again:
            continue
        tasks[row.job_id, row.dataset_uuid, row.dataset_version, row.scope_key].append((line, row))
    for line, row in dump.of(EventRow):
        for job_id in jobs[row.dataset_uuid] if row.routed_at else ():
            made = tasks[job_id, row.dataset_uuid, row.dataset_version, row.scope_key]
            if row.scope_key != row.told_key:
                continue
            if not made:
                yield _violation(f"{row.event_id} was routed, but job {job_id} has no task", line)
            if len({task.revision_id for _, task in made}) < len(made):
                lines = [at for at, _ in made]
                yield _violation(f"{row.event_id} made two tasks of job {job_id}", line, *lines)


def _causeless_tasks(dump: Dump) -> Iterator[Violation]:
    known = {(r.dataset_version, r.told_key) for _, r in dump.of(EventRow)}
    # The reconciler makes the tasks of partitions that nobody told of.
    known |= {(r.dataset_version, f"p:{r.partition_key}") for _, r in dump.of(PartitionRow)}
    for line, row in dump.of(TaskRow):
        cause = (row.dataset_version, row.scope_key)
        if row.dataset_version is not None and cause not in known and not row.is_again:
            yield _violation(f"task {row.task_id} was made for an event that does not exist", line)


def _violation(text: str, *lines: int) -> Violation:
    return Violation(Invariant.SIDE_EFFECTS, text, tuple(sorted(lines)))
