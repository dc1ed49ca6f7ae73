"""Compare the final dump with the calls: a side effect exists if and only if its call committed."""

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from trace_etl.devtools.history.events import EventCall, EventKey, find_event_calls
from trace_etl.devtools.history.facts import Attempt, Facts
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import (
    ConsumerRow,
    DatasetRow,
    Dump,
    EventRow,
    OutboxRow,
    PartitionRow,
    TaskRow,
)


def event_effects(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Compare events with accepted calls, routing with events, and tasks with routing."""
    if not dump.has(EventRow):
        return
    yield from _find_unsent_events(facts, dump)
    yield from _find_lost_events(facts, dump)
    if dump.has(OutboxRow):
        yield from _check_routing(dump)
    if dump.has(TaskRow):
        yield from _check_consumers(dump)
        yield from _find_tasks_without_event(dump)


def _make_event_key(row: EventRow) -> EventKey:
    return EventKey(row.dataset_uuid, row.dataset_version, row.reported_key)


def _find_unsent_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Find event rows that no accepted or unanswered call of their attempt contained."""
    sent: dict[Attempt, list[EventCall]] = defaultdict(list)
    for task_id in list(facts.fenced):
        for call in find_event_calls(facts, task_id):
            sent[call.fenced.key].append(call)
    for line, row in dump.rows_of(EventRow):
        if row.producer_task_id not in facts.grants:
            continue  # triggered by a user, or run by a worker that was not recorded
        calls = sent[row.producer_task_id, row.attempt]
        if not any(key.may_be(_make_event_key(row)) for call in calls for key in call.keys):
            text = f"event {row.event_id} exists, but no accepted call contained it"
            yield _make_violation(text, line)


def _find_lost_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    stored: dict[UUID, list[EventKey]] = defaultdict(list)
    for _, row in dump.rows_of(EventRow):
        stored[row.producer_task_id].append(_make_event_key(row))
    for task_id in list(facts.fenced):
        for call in find_event_calls(facts, task_id):
            lost = [k for k in call.keys if not any(k.may_be(row) for row in stored[task_id])]
            if call.fenced.accepted and lost:
                scopes = ", ".join(sorted(k.scope_key for k in lost))
                text = f"task {task_id}: accepted events are missing: {scopes}"
                yield _make_violation(text, call.fenced.call.line)


def _check_routing(dump: Dump) -> Iterator[Violation]:
    """Check that an event is in the outbox, was routed, or belongs to an old generation."""
    current = {row.dataset_uuid: row.dataset_version for _, row in dump.rows_of(DatasetRow)}
    pending: dict[UUID, list[int]] = defaultdict(list)
    for line, row in dump.rows_of(OutboxRow):
        if row.kind == "route_event":
            pending[row.subject].append(line)
    events = {row.event_id: (line, row) for line, row in dump.rows_of(EventRow)}
    for event_id, lines in pending.items():
        if event_id not in events:
            yield _make_violation(
                f"the outbox routes event {event_id}, which does not exist", *lines
            )
        if len(lines) > 1:
            yield _make_violation(f"the outbox routes event {event_id} {len(lines)} times", *lines)
    for event_id, (line, row) in events.items():
        live = current.get(row.dataset_uuid) == row.dataset_version
        if row.routed_at is None and event_id not in pending and live:
            yield _make_violation(f"event {event_id} was not routed and is not in the outbox", line)


def _check_consumers(dump: Dump) -> Iterator[Violation]:
    """Check that a routed event has exactly one task per job that reads its dataset."""
    jobs: dict[UUID, set[UUID]] = defaultdict(set)
    for _, row in dump.rows_of(ConsumerRow):
        jobs[row.dataset_uuid].add(row.job_id)
    tasks: dict[tuple[UUID | None, UUID | None, UUID | None, str], list[tuple[int, TaskRow]]]
    tasks = defaultdict(list)
    for line, row in dump.rows_of(TaskRow):
        if row.is_rebuild:
            continue
        tasks[row.job_id, row.dataset_uuid, row.dataset_version, row.scope_key].append((line, row))
    for line, row in dump.rows_of(EventRow):
        for job_id in jobs[row.dataset_uuid] if row.routed_at else ():
            created = tasks[job_id, row.dataset_uuid, row.dataset_version, row.scope_key]
            if row.scope_key != row.reported_key:
                continue
            if not created:
                yield _make_violation(
                    f"event {row.event_id} was routed, but job {job_id} has no task", line
                )
            if len({task.revision_id for _, task in created}) < len(created):
                lines = [at for at, _ in created]
                yield _make_violation(
                    f"event {row.event_id} created two tasks of job {job_id}", line, *lines
                )


def _find_tasks_without_event(dump: Dump) -> Iterator[Violation]:
    causes = {(r.dataset_version, r.reported_key) for _, r in dump.rows_of(EventRow)}
    # The reconciler creates tasks for partitions without an event.
    causes |= {(r.dataset_version, f"p:{r.partition_key}") for _, r in dump.rows_of(PartitionRow)}
    for line, row in dump.rows_of(TaskRow):
        cause = (row.dataset_version, row.scope_key)
        if row.dataset_version is not None and cause not in causes and not row.is_rebuild:
            yield _make_violation(
                f"task {row.task_id} was created for an event that does not exist", line
            )


def _make_violation(text: str, *lines: int) -> Violation:
    return Violation(Invariant.SIDE_EFFECTS, text, tuple(sorted(lines)))
