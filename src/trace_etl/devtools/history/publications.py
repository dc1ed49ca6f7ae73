"""Compare partitions with the completions that committed them, and batches with their messages."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from trace_etl.api.task import lifecycle
from trace_etl.api.task.payload import Scope
from trace_etl.devtools.history.facts import Attempt, Facts, FencedCall
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import (
    BufferRow,
    Dump,
    MessageRow,
    OutboxRow,
    PartitionRow,
    TaskRow,
)
from trace_etl.model.scope import Range


class PublishedPartition(NamedTuple):
    """A publication of a completion, and its partition."""

    fenced: FencedCall
    item: lifecycle.Published
    key: str
    span: Range | None


Batch = tuple[UUID, int, str]
"""Task, attempt and batch URI. The dataset is left out: a call may give only its name."""


def partition_effects(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """Check that a partition is committed if and only if a completion was accepted."""
    if not dump.has(PartitionRow):
        return
    publications = [
        one
        for task_id in list(facts.fenced)
        for fenced, body in facts.calls_of(task_id, lifecycle.Complete)
        for one in list_publications(facts, fenced, body)
    ]
    rows = dump.rows_of(PartitionRow)
    for line, row in rows:
        if row.task_id in facts.grants and not _is_explained(row, publications):
            text = f"partition {row.partition_key} of {row.dataset_version}: no completion published it"
            yield _make_violation(text, line)
    for one in publications:
        if one.fenced.accepted:
            yield from _find_missing(facts, one, rows, publications)


def list_publications(
    facts: Facts, fenced: FencedCall, body: lifecycle.Complete
) -> list[PublishedPartition]:
    """Return the publications of a completion whose partition is known."""
    return [
        PublishedPartition(fenced, item, *partition)
        for item in body.datasets_published
        if (partition := item.partition(_find_scope(facts, fenced))) is not None
    ]


def _find_scope(facts: Facts, fenced: FencedCall) -> Scope | None:
    """Return the scope of the task. None if the history does not contain the claim."""
    return next((g.claimed.task.scope for g in facts.granted(fenced.key)), None)


def _is_explained(row: PartitionRow, publications: list[PublishedPartition]) -> bool:
    return any(
        one.fenced.key == (row.task_id, row.attempt)
        and one.item.dataset_version == row.dataset_version
        and one.key == row.partition_key
        and one.item.storage_ref.prefix == row.storage_ref.get("prefix")
        for one in publications
    )


def _find_missing(
    facts: Facts,
    one: PublishedPartition,
    rows: list[tuple[int, PartitionRow]],
    publications: list[PublishedPartition],
) -> Iterator[Violation]:
    covering = [(line, row) for line, row in rows if _covers(row, one)]
    where, fenced = f"partition {one.key} of {one.item.dataset_version}", one.fenced
    if not covering:
        yield _make_violation(f"{where} was published and does not exist", fenced.call.line)
    for line, row in covering:
        key = (row.task_id, row.attempt)
        if (
            key != fenced.key
            and _is_older(row, fenced, publications)
            and _was_claimed_before(facts, key, fenced)
        ):
            yield _make_violation(
                f"{where} still points to the replaced files", fenced.call.line, line
            )


def _was_claimed_before(facts: Facts, key: Attempt, fenced: FencedCall) -> bool:
    """Whether the current owner was claimed first. If not, its inputs may be newer, and the commit
    must not replace it."""
    ours, theirs = facts.granted(fenced.key), facts.granted(key)
    return all(their.call.ended_before(our.call) for our in ours for their in theirs)


def _covers(row: PartitionRow, one: PublishedPartition) -> bool:
    if row.dataset_version != one.item.dataset_version:
        return False
    if row.partition_key == one.key:
        return True
    if row.range_start is None or row.range_end is None or one.span is None:
        return False
    return row.range_start <= one.span.start and one.span.end <= row.range_end


def _is_older(
    row: PartitionRow, fenced: FencedCall, publications: list[PublishedPartition]
) -> bool:
    owners = [one.fenced for one in publications if one.fenced.key == (row.task_id, row.attempt)]
    return bool(owners) and all(owner.call.ended_before(fenced.call) for owner in owners)


def buffer_effects(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """Check that a batch has one record and one message, also if it was published repeatedly."""
    answers: dict[tuple[Batch, UUID | None, str | None], dict[UUID, int]] = defaultdict(dict)
    for task_id in list(facts.fenced):
        for fenced, body in facts.calls_of(task_id, lifecycle.BufferPublish):
            if fenced.accepted:
                answer = lifecycle.BufferPublishAccepted.model_validate(fenced.call.body)
                same = (_make_batch_key(body), body.dataset_uuid, body.dedupe_scope)
                answers[same][answer.publish_id] = fenced.call.line
    for (batch, _, _), ids in answers.items():
        if len(ids) > 1:
            text = f"task {batch[0]}: the batch {batch[2]} was published as {len(ids)} records"
            yield _make_violation(text, *ids.values())
    if dump is not None and dump.has(BufferRow):
        yield from _check_records(
            facts, dump, {i: at for ids in answers.values() for i, at in ids.items()}
        )
        yield from _check_messages(facts, dump)


def _make_batch_key(body: lifecycle.BufferPublish) -> Batch:
    return body.task_id, body.attempt, body.batch_uri


def _check_records(
    facts: Facts, dump: Dump, accepted_lines: dict[UUID, int]
) -> Iterator[Violation]:
    rows = {row.publish_id: (line, row) for line, row in dump.rows_of(BufferRow)}
    for publish_id, line in accepted_lines.items():
        if publish_id not in rows:
            yield _make_violation(
                f"buffer publish {publish_id} was accepted and does not exist", line
            )
    sent = {
        _make_batch_key(b)
        for t in list(facts.fenced)
        for _, b in facts.calls_of(t, lifecycle.BufferPublish)
    }
    for line, row in rows.values():
        if row.task_id in facts.grants and (row.task_id, row.attempt, row.batch_uri) not in sent:
            yield _make_violation(
                f"buffer publish {row.publish_id} exists, but no call sent it", line
            )


def _check_messages(facts: Facts, dump: Dump) -> Iterator[Violation]:
    if not dump.has(OutboxRow):
        return
    rows = {row.publish_id: (line, row) for line, row in dump.rows_of(BufferRow)}
    pending: dict[UUID, list[int]] = defaultdict(list)
    for line, row in dump.rows_of(OutboxRow):
        if row.kind == "buffer_message":
            pending[row.subject].append(line)
    for publish_id, lines in pending.items():
        if publish_id not in rows:
            yield _make_violation(
                f"the outbox sends buffer publish {publish_id}, which does not exist", *lines
            )
        if len(lines) > 1:
            yield _make_violation(
                f"the outbox sends buffer publish {publish_id} {len(lines)} times", *lines
            )
    if dump.has(MessageRow):
        yield from _check_delivered(facts, dump, rows, pending)


def _check_delivered(
    facts: Facts,
    dump: Dump,
    rows: dict[UUID, tuple[int, BufferRow]],
    pending: dict[UUID, list[int]],
) -> Iterator[Violation]:
    sent: dict[Batch, list[int]] = defaultdict(list)
    for line, row in dump.rows_of(MessageRow):
        if row.queue == "buffer":
            sent[_read_batch(row)].append(line)
    for publish_id, (line, row) in rows.items():
        if row.is_settled or row.task_id not in facts.grants:
            continue
        if publish_id not in pending and not sent.get((row.task_id, row.attempt, row.batch_uri)):
            yield _make_violation(f"buffer publish {publish_id} has no message", line)
    recorded = {(row.task_id, row.attempt, row.batch_uri) for _, row in rows.values()}
    for batch, lines in sent.items():
        if batch not in recorded:
            yield _make_violation(
                f"a message names batch {batch[2]}, which no call published", *lines
            )


def _read_batch(row: MessageRow) -> Batch:
    producer = row.body["producer"]
    return UUID(producer["task_id"]), int(producer["attempt"]), str(row.body["batch_uri"])


def wake_up_effects(dump: Dump) -> Iterator[Violation]:
    """Check that every wake-up is for an existing task."""
    if not dump.has(TaskRow):
        return
    task_ids = {row.task_id for _, row in dump.rows_of(TaskRow)}
    for line, row in dump.rows_of(OutboxRow):
        if row.kind in ("wake_up", "run_inline", "invoke") and row.subject not in task_ids:
            yield _make_violation(f"woken for task {row.subject}, which does not exist", line)
    for line, row in dump.rows_of(MessageRow):
        task_id = row.body.get("task_id")
        if isinstance(task_id, str) and UUID(task_id) not in task_ids:
            yield _make_violation(f"woken for task {task_id}, which does not exist", line)


def _make_violation(text: str, *lines: int) -> Violation:
    return Violation(Invariant.SIDE_EFFECTS, text, tuple(sorted(lines)))
