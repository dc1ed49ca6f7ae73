"""Check that an attempt completes once and a task succeeds once."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from uuid import UUID

from trace_etl.api.task import lifecycle
from trace_etl.devtools.history.facts import Attempt, Facts, FencedCall
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import AttemptRow, Dump, TaskRow

Completed = tuple[FencedCall, lifecycle.Complete]


def one_completion(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """Check that an attempt has one outcome, and that no attempt follows a success."""
    for task_id in list(facts.fenced):
        accepted = [
            pair for pair in facts.calls_of(task_id, lifecycle.Complete) if pair[0].accepted
        ]
        yield from _find_contradictions(accepted)
        yield from _find_grants_after_success(facts, task_id, accepted)
    if dump is not None and dump.has(TaskRow):
        yield from _check_dump(facts, dump)


def _find_contradictions(accepted: list[Completed]) -> Iterator[Violation]:
    by_attempt: dict[Attempt, list[Completed]] = defaultdict(list)
    for fenced, body in accepted:
        by_attempt[fenced.key].append((fenced, body))
    for key, group in by_attempt.items():
        for (earlier, first), (later, second) in pairwise(group):
            if first != second:
                text = f"task {key[0]}: attempt {key[1]} was completed twice with different bodies"
                lines = sorted((earlier.call.line, later.call.line))
                yield Violation(Invariant.ONE_COMPLETION, text, tuple(lines))


def _find_grants_after_success(
    facts: Facts, task_id: UUID, accepted: list[Completed]
) -> Iterator[Violation]:
    successes = [fenced for fenced, body in accepted if body.status == "Completed"]
    for fenced in successes:
        for grant in facts.grants.get(task_id, []):
            if grant.attempt > fenced.key[1]:
                text = (
                    f"task {task_id}: granted again although attempt {fenced.key[1]} completed it"
                )
                lines = (fenced.call.line, grant.call.line)
                yield Violation(Invariant.ONE_COMPLETION, text, lines)


def _check_dump(facts: Facts, dump: Dump) -> Iterator[Violation]:
    ended = {(row.task_id, row.attempt): (line, row) for line, row in dump.rows_of(AttemptRow)}
    for line, row in dump.rows_of(TaskRow):
        completions = facts.calls_of(row.task_id, lifecycle.Complete)
        yield from _find_unreported_success(facts, completions, line, row)
        for fenced, body in completions:
            if fenced.accepted:
                yield from _find_lost_success(fenced, body, line, row)
                if dump.has(AttemptRow):
                    yield from _find_wrong_outcome(fenced, body, ended)


def _find_lost_success(
    fenced: FencedCall, body: lifecycle.Complete, line: int, row: TaskRow
) -> Iterator[Violation]:
    if body.status == "Completed" and row.status != "Completed":
        text = f"task {row.task_id}: its completion was accepted, but it is {row.status}"
        yield Violation(Invariant.ONE_COMPLETION, text, (fenced.call.line, line))


def _find_wrong_outcome(
    fenced: FencedCall, body: lifecycle.Complete, ended: dict[Attempt, tuple[int, AttemptRow]]
) -> Iterator[Violation]:
    line, row = ended.get(fenced.key, (None, None))
    # A failed attempt of a task that was asked to stop counts as Canceled.
    allowed = {body.status, "Canceled"} if body.status == "Failed" else {body.status}
    if row is None or row.outcome not in allowed:
        recorded = "not recorded" if row is None else f"recorded as {row.outcome}"
        text = (
            f"task {fenced.key[0]}: attempt {fenced.key[1]} ended {body.status}, but is {recorded}"
        )
        lines = (fenced.call.line,) if line is None else (fenced.call.line, line)
        yield Violation(Invariant.ONE_COMPLETION, text, lines)


def _find_unreported_success(
    facts: Facts, completions: list[Completed], line: int, row: TaskRow
) -> Iterator[Violation]:
    """Find a success that no call reported. Tasks without a recorded grant are skipped."""
    if row.status != "Completed" or row.task_id not in facts.grants:
        return
    if not any(b.status == "Completed" and b.attempt == row.attempt for _, b in completions):
        text = f"task {row.task_id}: Completed, but attempt {row.attempt} did not report it"
        yield Violation(Invariant.ONE_COMPLETION, text, (line,))
