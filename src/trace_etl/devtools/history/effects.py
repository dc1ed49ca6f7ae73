"""Compare the final dump with the calls: a side effect exists if and only if its call committed."""

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from trace_etl.api.task import lifecycle
from trace_etl.devtools.history.events import EventCall, EventKey, find_event_calls
from trace_etl.devtools.history.facts import Attempt, Facts
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import (
    ConsumerRow,
    DatasetRow,
    DeferredRow,
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
        yield from _find_tasks_without_event(facts, dump)


def _make_event_key(row: EventRow) -> EventKey:
    return EventKey(row.dataset_uuid, row.dataset_version, row.reported_key)


def _find_unsent_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Find event rows that no accepted or unanswered call of their attempt contained."""
    sent: dict[Attempt, list[EventCall]] = defaultdict(list)
    for task_id in list(facts.fenced):
        for one in find_event_calls(facts, task_id):
            sent[one.fenced.key].append(one)
    for line, row in dump.rows_of(EventRow):
        if row.producer_task_id not in facts.grants:
            continue  # triggered by a user, or run by a worker that was not recorded
        calls = sent[row.producer_task_id, row.attempt]
        keys = [key for one in calls for key in (*one.keys, *one.implied)]
        if not any(key.may_be(_make_event_key(row)) for key in keys) and not _is_of_sink(
            facts, row
        ):
            text = f"event {row.event_id} exists, but no accepted call contained it"
            yield _make_violation(text, line)


def _is_of_sink(facts: Facts, row: EventRow) -> bool:
    """Whether the sink announced a batch of this attempt: only the sink emits such an event."""
    return row.scope_key.startswith("c:") and any(
        fenced.key == (row.producer_task_id, row.attempt)
        and body.dataset_uuid in (None, row.dataset_uuid)
        for fenced, body in facts.calls_of(row.producer_task_id, lifecycle.BufferPublish)
    )


def _find_lost_events(facts: Facts, dump: Dump) -> Iterator[Violation]:
    stored: dict[UUID, list[EventKey]] = defaultdict(list)
    for _, row in dump.rows_of(EventRow):
        stored[row.producer_task_id].append(_make_event_key(row))
    for task_id in list(facts.fenced):
        for one in find_event_calls(facts, task_id):
            lost = [k for k in one.keys if not any(k.may_be(row) for row in stored[task_id])]
            if one.fenced.accepted and lost:
                scopes = ", ".join(sorted(k.scope_key for k in lost))
                text = f"task {task_id}: accepted events are missing: {scopes}"
                yield _make_violation(text, one.fenced.call.line)


def _check_routing(dump: Dump) -> Iterator[Violation]:
    """Check that an event is in the outbox, deferred or routed, or belongs to an old generation."""
    deferred = {row.event_id for _, row in dump.rows_of(DeferredRow)}
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
        if row.routed_at is None and event_id not in pending and event_id not in deferred and live:
            yield _make_violation(f"event {event_id} was not routed and is not in the outbox", line)


Scope = tuple[UUID | None, UUID | None, UUID | None, str]
"""Job, dataset, generation and scope of a task."""


def _check_consumers(dump: Dump) -> Iterator[Violation]:
    """Check that a routed event has exactly one task per job that reads its dataset."""
    current = {row.dataset_uuid: row.dataset_version for _, row in dump.rows_of(DatasetRow)}
    deferred = {(row.event_id, row.job_id) for _, row in dump.rows_of(DeferredRow)}
    consumers: dict[UUID, list[ConsumerRow]] = defaultdict(list)
    for _, row in dump.rows_of(ConsumerRow):
        consumers[row.dataset_uuid].append(row)
    tasks: dict[Scope, list[tuple[int, TaskRow]]] = defaultdict(list)
    for line, row in dump.rows_of(TaskRow):
        tasks[row.job_id, row.dataset_uuid, row.dataset_version, row.scope_key].append((line, row))
    for line, row in dump.rows_of(EventRow):
        if not row.routed_at or row.scope_key != row.reported_key:
            continue
        is_current = current.get(row.dataset_uuid, row.dataset_version) == row.dataset_version
        for consumer in consumers[row.dataset_uuid]:
            job_id = consumer.job_id
            created = tasks[job_id, row.dataset_uuid, row.dataset_version, row.scope_key]
            must_exist = is_current and _has_read(consumer, row)
            if not created and must_exist and (row.event_id, job_id) not in deferred:
                yield _make_violation(
                    f"event {row.event_id} was routed, but job {job_id} has no task", line
                )
            by_event = [(at, task) for at, task in created if not task.is_rebuild]
            if len({task.revision_id for _, task in by_event}) < len(by_event):
                lines = [at for at, _ in by_event]
                yield _make_violation(
                    f"event {row.event_id} created two tasks of job {job_id}", line, *lines
                )


def _has_read(consumer: ConsumerRow, event: EventRow) -> bool:
    """Whether the job read the event's generation when the event arrived.

    A job that a later deploy added, or moved to another generation, gets its tasks by partition.
    """
    if consumer.dataset_version not in (None, event.dataset_version):
        return False
    accepted, since = event.accepted_at, consumer.since
    return accepted is None or since is None or since < accepted


def _find_tasks_without_event(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Find tasks that only an event can have created, and whose event is missing.

    Backfills and rollouts create bulk tasks without events. The event of a task that is older than
    the history may have been deleted.
    """
    causes = {(r.dataset_version, r.reported_key) for _, r in dump.rows_of(EventRow)}
    # The reconciler creates tasks for partitions without an event.
    causes |= {(r.dataset_version, f"p:{r.partition_key}") for _, r in dump.rows_of(PartitionRow)}
    for line, row in dump.rows_of(TaskRow):
        cause = (row.dataset_version, row.scope_key)
        if row.dataset_version is None or cause in causes or row.is_rebuild or row.bulk:
            continue
        if row.created_at is None or row.created_at.timestamp() >= facts.began:
            yield _make_violation(
                f"task {row.task_id} was created for an event that does not exist", line
            )


def _make_violation(text: str, *lines: int) -> Violation:
    return Violation(Invariant.SIDE_EFFECTS, text, tuple(sorted(lines)))
