"""One live lease, attempts that only grow, and a fence that holds."""

from collections.abc import Iterator

from trace_etl.api.task import lifecycle as wire
from trace_etl.devtools.history.facts import Facts, Grant, Said, Touched
from trace_etl.devtools.history.lines import Call
from trace_etl.devtools.history.rows import AttemptRow, Dump, TaskRow
from trace_etl.devtools.history.verdict import Invariant, Violation


def one_live_lease(facts: Facts, clock_skew: float) -> Iterator[Violation]:
    """No lease is granted while another of the same task is surely alive."""
    for grants in facts.grants.values():
        ordered = sorted(grants, key=lambda g: (g.attempt, g.call.began))
        for n, older in enumerate(ordered):
            for newer in ordered[n + 1 :]:
                yield from _overlap(facts, older, newer, clock_skew)


def _overlap(facts: Facts, older: Grant, newer: Grant, clock_skew: float) -> Iterator[Violation]:
    who = f"task {older.task_id}"
    lines = _lines(older.call, newer.call)
    if older.attempt == newer.attempt:
        text = f"{who}: attempt {older.attempt} was granted twice"
        yield Violation(Invariant.ONE_LIVE_LEASE, text, lines)
    elif newer.call.surely_before(older.call):
        return  # attempts that shrink are another matter
    elif newer.call.ended < _earliest_end(facts, older, clock_skew):
        text = f"{who}: attempt {newer.attempt} was granted while attempt {older.attempt} was alive"
        yield Violation(Invariant.ONE_LIVE_LEASE, text, lines)


def _earliest_end(facts: Facts, grant: Grant, clock_skew: float) -> float:
    """Before this moment the lease was surely alive: nothing that could end it had begun."""
    said = [s for s in facts.said.get(grant.task_id, []) if s.body.attempt == grant.attempt]
    beats = [s for s in said if s.accepted and isinstance(s.body, wire.Heartbeat)]
    ends = [s.call.began for s in said if isinstance(s.body, wire.Complete)]
    for touched in (facts.expired, facts.reaped):
        ends += [t.call.began for t in touched.get(grant.task_id, []) if _about(t, grant)]
    ends.append(grant.call.began + grant.claimed.task.timeout_seconds - clock_skew)
    ends.append(_expiry(grant, beats) - clock_skew)
    return max([min(ends), *(beat.call.began for beat in beats)])


def _expiry(grant: Grant, beats: list[Said]) -> float:
    """Until when the lease was promised to last."""
    told = [wire.HeartbeatAccepted.model_validate(b.call.body).lease_expires_at for b in beats]
    return max(moment.timestamp() for moment in [grant.claimed.lease_expires_at, *told])


def _about(touched: Touched, grant: Grant) -> bool:
    return touched.task.attempt in (None, grant.attempt)


def attempts_only_grow(facts: Facts, dump: Dump | None) -> Iterator[Violation]:
    """Nobody is granted, or shown, an older attempt after a newer one."""
    for task_id in {*facts.grants, *facts.started, *facts.seen}:
        sights = [(g.call, g.attempt) for g in facts.grants.get(task_id, [])]
        for touched in (facts.started, facts.seen):
            sights += [(t.call, t.task.attempt or 0) for t in touched.get(task_id, [])]
        yield from _shrunk(f"task {task_id}", sights)
    if dump is not None and dump.has(TaskRow):
        yield from _dumped_attempts(facts, dump)


def _shrunk(who: str, sights: list[tuple[Call, int]]) -> Iterator[Violation]:
    for call, attempt in sights:
        earlier = [(c, a) for c, a in sights if c.surely_before(call) and a > attempt]
        if earlier:
            newest, was = max(earlier, key=lambda pair: pair[1])
            text = f"{who}: attempt {attempt} after attempt {was}"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, _lines(newest, call))


def _dumped_attempts(facts: Facts, dump: Dump) -> Iterator[Violation]:
    rows = {row.task_id: (line, row) for line, row in dump.of(TaskRow)}
    for line, row in rows.values():
        if row.attempt > row.max_attempts:
            text = f"task {row.task_id}: attempt {row.attempt} of {row.max_attempts}"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (line,))
        for grant in facts.grants.get(row.task_id, []):
            if grant.attempt > row.attempt:
                text = f"task {row.task_id}: ended at attempt {row.attempt}, before one granted"
                yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (grant.call.line, line))
    for line, row in dump.of(AttemptRow):
        at, task = rows.get(row.task_id, (line, None))
        if task is not None and row.attempt > task.attempt:
            text = f"task {row.task_id}: attempt {row.attempt} ended, but is yet to come"
            yield Violation(Invariant.ATTEMPTS_ONLY_GROW, text, (at, line))


def stale_fence(facts: Facts) -> Iterator[Violation]:
    """Nothing is accepted from an attempt or lease that is not the current one."""
    for said in (s for all_said in facts.said.values() for s in all_said if s.accepted):
        yield from _without_lease(facts, said)
        yield from _superseded(facts, said)
        yield from _after_the_end(facts, said)


def _without_lease(facts: Facts, said: Said) -> Iterator[Violation]:
    held = [g for g in facts.granted(said.key) if g.claimed.lease_token == said.body.lease_token]
    if not held:
        others = [g.call for g in facts.granted(said.key)]
        yield _refuted(said, "was accepted with a lease that nobody was granted", *others)
    elif all(said.call.surely_before(g.call) for g in held):
        yield _refuted(said, "was accepted before its lease was granted", held[0].call)


def _superseded(facts: Facts, said: Said) -> Iterator[Violation]:
    task_id, attempt = said.key
    newer = [g.call for g in facts.grants.get(task_id, []) if g.attempt > attempt]
    newer += [t.call for t in facts.started.get(task_id, []) if (t.task.attempt or 0) > attempt]
    before = [call for call in newer if call.surely_before(said.call)]
    if before:
        yield _refuted(said, "was accepted after a newer attempt had started", before[0])


def _after_the_end(facts: Facts, said: Said) -> Iterator[Violation]:
    """An attempt that ended says no more; save that a reaped one may still complete."""
    if isinstance(said.body, wire.Complete):
        return
    task_id, attempt = said.key
    ends = [
        c.call
        for c, body in facts.of(task_id, wire.Complete)
        if c.accepted and body.attempt == attempt
    ]
    ends += [t.call for t in facts.reaped.get(task_id, []) if t.task.attempt == attempt]
    before = [call for call in ends if call.surely_before(said.call)]
    if before:
        yield _refuted(said, "was accepted after its attempt had ended", before[0])


def _refuted(said: Said, text: str, *others: Call) -> Violation:
    who = f"task {said.key[0]}: {said.call.call} of attempt {said.key[1]}"
    return Violation(Invariant.STALE_FENCE, f"{who} {text}", _lines(said.call, *others))


def _lines(*calls: Call) -> tuple[int, ...]:
    return tuple(sorted(call.line for call in calls))
