"""Partitions ↔ completions that published them; batches ↔ their messages."""

from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from trace_etl.api.task import lifecycle as wire
from trace_etl.devtools.history.facts import Attempt, Facts, Said
from trace_etl.devtools.history.rows import (
    BufferRow,
    Dump,
    MessageRow,
    OutboxRow,
    PartitionRow,
    TaskRow,
)
from trace_etl.devtools.history.verdict import Invariant, Violation

Publication = tuple[Said, wire.Published]
Batch = tuple[UUID, int, str]
"""Task, attempt, batch: the dataset may be known by name only."""


def partition_effects(facts: Facts, dump: Dump) -> Iterator[Violation]:
    """A pointer exists because a completion was accepted, and because of nothing else."""
    if not dump.has(PartitionRow):
        return
    made = _publications(facts)
    rows = dump.of(PartitionRow)
    for line, row in rows:
        if row.task_id in facts.grants and not _explained(row, made):
            text = f"partition {row.partition_key} of {row.dataset_version}: nobody published it"
            yield _violation(text, line)
    for said, item in made:
        if said.accepted:
            yield from _missing(facts, said, item, rows, made)


def _publications(facts: Facts) -> list[Publication]:
    return [
        (said, item)
        for task_id in list(facts.said)
        for said, body in facts.of(task_id, wire.Complete)
        for item in body.datasets_published
    ]


def _explained(row: PartitionRow, made: list[Publication]) -> bool:
    return any(
        said.key == (row.task_id, row.attempt)
        and item.dataset_version == row.dataset_version
        and item.partition_key == row.partition_key
        and item.storage_ref.prefix == row.storage_ref.get("prefix")
        for said, item in made
    )


def _missing(
    facts: Facts,
    said: Said,
    item: wire.Published,
    rows: list[tuple[int, PartitionRow]],
    made: list[Publication],
) -> Iterator[Violation]:
    over = [(line, row) for line, row in rows if _covers(row, item)]
    where = f"partition {item.partition_key} of {item.dataset_version}"
    if not over:
        yield _violation(f"{where} was published and is not there", said.call.line)
    for line, row in over:
        key = (row.task_id, row.attempt)
        if key != said.key and _surely_older(row, said, made) and _read_before(facts, key, said):
            yield _violation(f"{where} still shows what it replaced", said.call.line, line)


def _read_before(facts: Facts, key: Attempt, said: Said) -> bool:
    """What stands was surely claimed first: else its inputs may be newer, and it stays."""
    ours, theirs = facts.granted(said.key), facts.granted(key)
    return all(their.call.surely_before(our.call) for our in ours for their in theirs)


def _covers(row: PartitionRow, item: wire.Published) -> bool:
    if row.dataset_version != item.dataset_version:
        return False
    if row.partition_key == item.partition_key:
        return True
    if row.range_start is None or row.range_end is None:
        return False
    if item.range_start is None or item.range_end is None:
        return False
    return row.range_start <= item.range_start and item.range_end <= row.range_end


def _surely_older(row: PartitionRow, said: Said, made: list[Publication]) -> bool:
    owners = [s for s, _ in made if s.key == (row.task_id, row.attempt)]
    return bool(owners) and all(owner.call.surely_before(said.call) for owner in owners)


def buffer_effects(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """A batch is one record and asks for one message, however often it was published."""
    answers: dict[tuple[Batch, UUID | None, str | None], dict[UUID, int]] = defaultdict(dict)
    for task_id in list(facts.said):
        for said, body in facts.of(task_id, wire.BufferPublish):
            if said.accepted:
                answer = wire.BufferPublishAccepted.model_validate(said.call.body)
                same = (_batch(body), body.dataset_uuid, body.dedupe_scope)
                answers[same][answer.publish_id] = said.call.line
    for (batch, _, _), ids in answers.items():
        if len(ids) > 1:
            text = f"task {batch[0]}: the batch {batch[2]} was published as {len(ids)} records"
            yield _violation(text, *ids.values())
    if dump is not None and dump.has(BufferRow):
        yield from _records(
            facts, dump, {i: at for ids in answers.values() for i, at in ids.items()}
        )
        yield from _messages(dump)


def _batch(body: wire.BufferPublish) -> Batch:
    return body.task_id, body.attempt, body.batch_uri


def _records(facts: Facts, dump: Dump, answered: dict[UUID, int]) -> Iterator[Violation]:
    rows = {row.publish_id: (line, row) for line, row in dump.of(BufferRow)}
    for publish_id, line in answered.items():
        if publish_id not in rows:
            yield _violation(f"the publish {publish_id} was accepted and is not there", line)
    sent = {_batch(b) for t in list(facts.said) for _, b in facts.of(t, wire.BufferPublish)}
    for line, row in rows.values():
        if row.task_id in facts.grants and (row.task_id, row.attempt, row.batch_uri) not in sent:
            yield _violation(f"the publish {row.publish_id} is there, but nobody sent it", line)


def _messages(dump: Dump) -> Iterator[Violation]:
    if not dump.has(OutboxRow):
        return
    rows = {row.publish_id: (line, row) for line, row in dump.of(BufferRow)}
    asked: dict[UUID, list[int]] = defaultdict(list)
    for line, row in dump.of(OutboxRow):
        if row.kind == "buffer_message":
            asked[row.subject].append(line)
    for publish_id, lines in asked.items():
        if publish_id not in rows:
            yield _violation(f"a message was asked for {publish_id}, which does not exist", *lines)
        if len(lines) > 1:
            yield _violation(f"{len(lines)} messages were asked for {publish_id}", *lines)
    if dump.has(MessageRow):
        yield from _delivered(dump, rows, asked)


def _delivered(
    dump: Dump, rows: dict[UUID, tuple[int, BufferRow]], asked: dict[UUID, list[int]]
) -> Iterator[Violation]:
    sent: dict[Batch, list[int]] = defaultdict(list)
    for line, row in dump.of(MessageRow):
        if row.queue == "buffer":
            sent[_told(row)].append(line)
    for publish_id, (line, row) in rows.items():
        if publish_id not in asked and not sent.get((row.task_id, row.attempt, row.batch_uri)):
            yield _violation(f"the publish {publish_id} has no message", line)
    known = {(row.task_id, row.attempt, row.batch_uri) for _, row in rows.values()}
    for batch, lines in sent.items():
        if batch not in known:
            yield _violation(f"a message tells of {batch[2]}, which nobody published", *lines)


def _told(row: MessageRow) -> Batch:
    producer = row.body["producer"]
    return UUID(producer["task_id"]), int(producer["attempt"]), str(row.body["batch_uri"])


def wake_up_effects(dump: Dump) -> Iterator[Violation]:
    """Nobody is woken for a task that does not exist."""
    if not dump.has(TaskRow):
        return
    known = {row.task_id for _, row in dump.of(TaskRow)}
    for line, row in dump.of(OutboxRow):
        if row.kind in ("wake_up", "run_inline") and row.subject not in known:
            yield _violation(f"woken for task {row.subject}, which does not exist", line)
    for line, row in dump.of(MessageRow):
        task_id = row.body.get("task_id")
        if isinstance(task_id, str) and UUID(task_id) not in known:
            yield _violation(f"woken for task {task_id}, which does not exist", line)


def _violation(text: str, *lines: int) -> Violation:
    return Violation(Invariant.SIDE_EFFECTS, text, tuple(sorted(lines)))
