"""Check leases and fences: one live lease per task, growing attempts, no stale calls."""

from collections.abc import Iterator

from trace_etl.api.task import lifecycle
from trace_etl.devtools.history.facts import Facts, FencedCall, LeaseGrant, TaskObservation
from trace_etl.devtools.history.lines import RecordedCall
from trace_etl.devtools.history.report import Invariant, Violation
from trace_etl.devtools.history.rows import AttemptRow, Dump, TaskRow


def one_live_lease(facts: Facts, clock_skew: float) -> Iterator[Violation]:
    """Check that no lease is granted while another lease of the task is certainly alive."""
    for grants in facts.grants.values():
        ordered = sorted(grants, key=lambda g: (g.attempt, g.call.began))
        for n, older in enumerate(ordered):
            for newer in ordered[n + 1 :]:
                yield from _find_overlap(facts, older, newer, clock_skew)


def _find_overlap(
    facts: Facts, older: LeaseGrant, newer: LeaseGrant, clock_skew: float
) -> Iterator[Violation]:
    subject = f"task {older.task_id}"
    lines = _sort_lines(older.call, newer.call)
    if older.attempt == newer.attempt:
        text = f"{subject}: attempt {older.attempt} was granted twice"
        yield Violation(Invariant.ONE_LIVE_LEASE, text, lines)
    elif newer.call.ended_before(older.call):
        return  # `attempts_only_grow` reports this
    elif newer.call.ended < _compute_earliest_end(facts, older, clock_skew):
        text = f"{subject}: attempt {newer.attempt} was granted while attempt {older.attempt} was alive"
        yield Violation(Invariant.ONE_LIVE_LEASE, text, lines)


def _compute_earliest_end(facts: Facts, grant: LeaseGrant, clock_skew: float) -> float:
    """Return the earliest time at which the lease can have ended: before it, no call that could end
    the lease had started."""
    fenced = [s for s in facts.fenced.get(grant.task_id, []) if s.body.attempt == grant.attempt]
    beats = [s for s in fenced if s.accepted and isinstance(s.body, lifecycle.Heartbeat)]
    ends = [s.call.began for s in fenced if isinstance(s.body, lifecycle.Complete)]
    for touched in (facts.expired, facts.reaped):
        ends += [t.call.began for t in touched.get(grant.task_id, []) if _concerns(t, grant)]
    ends += facts.find_restarts(grant.task_id)
    ends.append(grant.call.began + grant.claimed.task.timeout_seconds - clock_skew)
    ends.append(_find_expiry(grant, beats) - clock_skew)
    return max([min(ends), *(beat.call.began for beat in beats)])


def _find_expiry(grant: LeaseGrant, beats: list[FencedCall]) -> float:
    """Return the last lease expiry that the Dispatcher reported."""
    extended = [
        lifecycle.HeartbeatAccepted.model_validate(b.call.body).lease_expires_at for b in beats
    ]
    return max(moment.timestamp() for moment in [grant.claimed.lease_expires_at, *extended])


def _concerns(touched: TaskObservation, grant: LeaseGrant) -> bool:
    return touched.task.attempt in (None, grant.attempt)


def attempts_only_grow(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """Check that no call returns an older attempt after a newer one."""
    for task_id in {*facts.grants, *facts.started, *facts.seen}:
        observed = [(g.call, g.attempt) for g in facts.grants.get(task_id, [])]
        for touched in (facts.started, facts.seen):
            observed += [(t.call, t.task.attempt or 0) for t in touched.get(task_id, [])]
        yield from _find_decreases(f"task {task_id}", observed)
    if dump is not None and dump.has(TaskRow):
        yield from _check_dumped_attempts(facts, dump)


def _find_decreases(subject: str, observed: list[tuple[RecordedCall, int]]) -> Iterator[Violation]:
    for call, attempt in observed:
        earlier = [(c, a) for c, a in observed if c.ended_before(call) and a > attempt]
        if earlier:
            newest, newer_attempt = max(earlier, key=lambda pair: pair[1])
            text = f"{subject}: attempt {attempt} after attempt {newer_attempt}"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, _sort_lines(newest, call))


def _check_dumped_attempts(facts: Facts, dump: Dump) -> Iterator[Violation]:
    rows = {row.task_id: (line, row) for line, row in dump.rows_of(TaskRow)}
    for line, row in rows.values():
        if row.attempt > row.max_attempts:
            text = f"task {row.task_id}: attempt {row.attempt} of {row.max_attempts}"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (line,))
        for grant in facts.grants.get(row.task_id, []):
            if grant.attempt > row.attempt:
                text = f"task {row.task_id}: ended at attempt {row.attempt}, but attempt {grant.attempt} was granted"
                yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (grant.call.line, line))
    for line, row in dump.rows_of(AttemptRow):
        at, task = rows.get(row.task_id, (line, None))
        if task is not None and row.attempt > task.attempt:
            text = f"task {row.task_id}: attempt {row.attempt} ended, but the task is at {task.attempt}"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (at, line))


def stale_fence(facts: Facts) -> Iterator[Violation]:
    """Check that no call of an old attempt or an unknown lease is accepted."""
    for fenced in (s for calls in facts.fenced.values() for s in calls if s.accepted):
        yield from _check_lease(facts, fenced)
        yield from _check_superseded(facts, fenced)
        yield from _check_ended(facts, fenced)


def _check_lease(facts: Facts, fenced: FencedCall) -> Iterator[Violation]:
    grants = [
        g for g in facts.granted(fenced.key) if g.claimed.lease_token == fenced.body.lease_token
    ]
    if not grants:
        others = [g.call for g in facts.granted(fenced.key)]
        yield _make_violation(fenced, "was accepted with a lease that was never granted", *others)
    elif all(fenced.call.ended_before(g.call) for g in grants):
        yield _make_violation(fenced, "was accepted before its lease was granted", grants[0].call)


def _check_superseded(facts: Facts, fenced: FencedCall) -> Iterator[Violation]:
    task_id, attempt = fenced.key
    newer = [g.call for g in facts.grants.get(task_id, []) if g.attempt > attempt]
    newer += [t.call for t in facts.started.get(task_id, []) if (t.task.attempt or 0) > attempt]
    before = [call for call in newer if call.ended_before(fenced.call)]
    if before:
        yield _make_violation(fenced, "was accepted after a newer attempt had started", before[0])


def _check_ended(facts: Facts, fenced: FencedCall) -> Iterator[Violation]:
    """Check that an ended attempt sends nothing more. A reaped attempt may still complete."""
    if isinstance(fenced.body, lifecycle.Complete):
        return
    task_id, attempt = fenced.key
    ends = [
        c.call
        for c, body in facts.calls_of(task_id, lifecycle.Complete)
        if c.accepted and body.attempt == attempt
    ]
    ends += [t.call for t in facts.reaped.get(task_id, []) if t.task.attempt == attempt]
    before = [call for call in ends if call.ended_before(fenced.call)]
    if before:
        yield _make_violation(fenced, "was accepted after its attempt had ended", before[0])


def _make_violation(fenced: FencedCall, text: str, *others: RecordedCall) -> Violation:
    subject = f"task {fenced.key[0]}: {fenced.call.call} of attempt {fenced.key[1]}"
    return Violation(Invariant.STALE_FENCE, f"{subject} {text}", _sort_lines(fenced.call, *others))


def _sort_lines(*calls: RecordedCall) -> tuple[int, ...]:
    return tuple(sorted(call.line for call in calls))
