"""One completion per attempt, and one success per task."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from uuid import UUID

from trace_etl.api.task import lifecycle as wire
from trace_etl.devtools.history.facts import Attempt, Facts, Said
from trace_etl.devtools.history.rows import AttemptRow, Dump, TaskRow
from trace_etl.devtools.history.verdict import Invariant, Violation

Completed = tuple[Said, wire.Complete]


def one_completion(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """An attempt ends in one way; a task succeeds once, and is not run again after that."""
    for task_id in list(facts.said):
        accepted = [pair for pair in facts.of(task_id, wire.Complete) if pair[0].accepted]
        yield from _contradictions(accepted)
        yield from _after_success(facts, task_id, accepted)
    if dump is not None and dump.has(TaskRow):
        yield from _dumped(facts, dump)


def _contradictions(accepted: list[Completed]) -> Iterator[Violation]:
    by_attempt: dict[Attempt, list[Completed]] = defaultdict(list)
    for said, body in accepted:
        by_attempt[said.key].append((said, body))
    for key, group in by_attempt.items():
        for (one, first), (other, second) in pairwise(group):
            if first != second:
                text = f"task {key[0]}: attempt {key[1]} was completed twice, with other content"
                yield _violation(text, one, other)


def _after_success(facts: Facts, task_id: UUID, accepted: list[Completed]) -> Iterator[Violation]:
    successes = [said for said, body in accepted if body.status == "Completed"]
    for said in successes:
        for grant in facts.grants.get(task_id, []):
            if grant.attempt > said.key[1]:
                text = f"task {task_id}: granted again although attempt {said.key[1]} completed it"
                lines = (said.call.line, grant.call.line)
                yield Violation(Invariant.ONE_COMPLETION, text, lines)


def _dumped(facts: Facts, dump: Dump) -> Iterator[Violation]:
    ended = {(row.task_id, row.attempt): (line, row) for line, row in dump.of(AttemptRow)}
    for line, row in dump.of(TaskRow):
        completions = facts.of(row.task_id, wire.Complete)
        yield from _unexplained(facts, completions, line, row)
        for said, body in completions:
            if said.accepted:
                yield from _forgotten(said, body, line, row)
                if dump.has(AttemptRow):
                    yield from _unrecorded(said, body, ended)


def _forgotten(said: Said, body: wire.Complete, line: int, row: TaskRow) -> Iterator[Violation]:
    if body.status == "Completed" and row.status != "Completed":
        text = f"task {row.task_id}: its completion was accepted, but it is {row.status}"
        yield Violation(Invariant.ONE_COMPLETION, text, (said.call.line, line))


def _unrecorded(
    said: Said, body: wire.Complete, ended: dict[Attempt, tuple[int, AttemptRow]]
) -> Iterator[Violation]:
    line, row = ended.get(said.key, (None, None))
    # A failed attempt of a task that was asked to stop counts as Canceled.
    right = {body.status, "Canceled"} if body.status == "Failed" else {body.status}
    if row is None or row.outcome not in right:
        was = "not recorded" if row is None else f"recorded as {row.outcome}"
        text = f"task {said.key[0]}: attempt {said.key[1]} ended {body.status}, but is {was}"
        lines = (said.call.line,) if line is None else (said.call.line, line)
        yield Violation(Invariant.ONE_COMPLETION, text, lines)


def _unexplained(
    facts: Facts, completions: list[Completed], line: int, row: TaskRow
) -> Iterator[Violation]:
    """A success that nobody reported. Tasks that ran elsewhere are none of our business."""
    if row.status != "Completed" or row.task_id not in facts.grants:
        return
    if not any(b.status == "Completed" and b.attempt == row.attempt for _, b in completions):
        text = f"task {row.task_id}: Completed, but attempt {row.attempt} never said so"
        yield Violation(Invariant.ONE_COMPLETION, text, (line,))


def _violation(text: str, *said: Said) -> Violation:
    return Violation(Invariant.ONE_COMPLETION, text, tuple(sorted(one.call.line for one in said)))
