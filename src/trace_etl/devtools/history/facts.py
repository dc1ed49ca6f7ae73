"""Sort recorded calls into the facts that invariants need: grants, fenced calls, ends."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from trace_etl.api.task import events, lifecycle
from trace_etl.devtools.history.lines import CallOutcome, RecordedCall, Unreadable

Attempt = tuple[UUID, int]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class LeaseGrant:
    """A lease that a claim granted."""

    call: RecordedCall
    claimed: lifecycle.Claimed

    @property
    def task_id(self) -> UUID:
        return self.claimed.task.task_id

    @property
    def attempt(self) -> int:
        return self.claimed.attempt


@dataclass(frozen=True)
class FencedCall:
    """A call with a fence that was accepted or not answered."""

    call: RecordedCall
    body: lifecycle.Fenced

    @property
    def key(self) -> Attempt:
        return self.body.task_id, self.body.attempt

    @property
    def accepted(self) -> bool:
        return self.call.outcome == CallOutcome.ACCEPTED


class TaskRef(BaseModel):
    """A task, and optionally one attempt of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_id: UUID
    attempt: int | None = None


@dataclass(frozen=True)
class TaskObservation:
    """A call that expired, reaped, retried or read a task."""

    call: RecordedCall
    task: TaskRef


@dataclass
class Facts:
    """All facts of a history, by task."""

    began: float = 0.0
    """The start of the first call."""
    grants: dict[UUID, list[LeaseGrant]] = field(
        default_factory=lambda: defaultdict[UUID, list[LeaseGrant]](list)
    )
    fenced: dict[UUID, list[FencedCall]] = field(
        default_factory=lambda: defaultdict[UUID, list[FencedCall]](list)
    )
    expired: dict[UUID, list[TaskObservation]] = field(
        default_factory=lambda: defaultdict[UUID, list[TaskObservation]](list)
    )
    """The test moved the time past a lease or a deadline."""
    reaped: dict[UUID, list[TaskObservation]] = field(
        default_factory=lambda: defaultdict[UUID, list[TaskObservation]](list)
    )
    started: dict[UUID, list[TaskObservation]] = field(
        default_factory=lambda: defaultdict[UUID, list[TaskObservation]](list)
    )
    """The retry scheduler queued this attempt."""
    seen: dict[UUID, list[TaskObservation]] = field(
        default_factory=lambda: defaultdict[UUID, list[TaskObservation]](list)
    )
    """A read returned the task with this attempt."""
    canceled: dict[UUID, list[RecordedCall]] = field(
        default_factory=lambda: defaultdict[UUID, list[RecordedCall]](list)
    )
    """A person may have canceled the task."""
    triggers: list[RecordedCall] = field(default_factory=list[RecordedCall])
    """A scope may have been triggered."""

    def calls_of(self, task_id: UUID, kind: type[M]) -> list[tuple[FencedCall, M]]:
        """Return the fenced calls of a task with a body of one type."""
        calls = self.fenced.get(task_id, [])
        return [(fenced, fenced.body) for fenced in calls if isinstance(fenced.body, kind)]

    def granted(self, key: Attempt) -> list[LeaseGrant]:
        return [g for g in self.grants.get(key[0], []) if g.attempt == key[1]]

    def find_restarts(self, task_id: UUID) -> Iterator[float]:
        """Find the earliest times at which a canceled task may have been queued again by a trigger."""
        for canceled in self.canceled.get(task_id, []):
            for trigger in self.triggers:
                if not trigger.ended_before(canceled):
                    yield max(canceled.began, trigger.began)


_FENCED: dict[str, type[lifecycle.Fenced]] = {
    "heartbeat": lifecycle.Heartbeat,
    "complete": lifecycle.Complete,
    "events": events.Events,
    "buffer_publish": lifecycle.BufferPublish,
}


def collect_facts(calls: list[RecordedCall]) -> Facts:
    """Sort the calls into facts. Raises Unreadable for an accepted call with a malformed body."""
    facts = Facts(began=min((call.began for call in calls), default=0.0))
    for call in calls:
        may_count = call.outcome in (CallOutcome.ACCEPTED, CallOutcome.MAYBE)
        if call.call in _FENCED and may_count:
            _add_fenced(facts, call)
        elif call.call == "trigger" and may_count:
            facts.triggers.append(call)
        elif call.call == "cancel" and "task_id" in call.request and may_count:
            facts.canceled[_parse_answer(call, TaskRef, call.request).task_id].append(call)
        elif call.outcome == CallOutcome.ACCEPTED:
            _add_accepted(facts, call)
    return facts


def _add_fenced(facts: Facts, call: RecordedCall) -> None:
    try:
        body = _FENCED[call.call].model_validate(call.request)
    except ValidationError as error:
        if call.outcome == CallOutcome.MAYBE:
            return  # the server rejects a malformed body, so the call had no effect
        raise Unreadable(f"line {call.line}: accepted, but malformed: {error}") from error
    facts.fenced[body.task_id].append(FencedCall(call, body))


def _add_accepted(facts: Facts, call: RecordedCall) -> None:
    if call.call in ("claim", "claim_many"):
        for claimed in _read_claims(call):
            facts.grants[claimed.task.task_id].append(LeaseGrant(call, claimed))
        return
    places = {
        "expire": (facts.expired, [call.request]),
        "reap": (facts.reaped, call.body.get("reaped", [])),
        "retry": (facts.started, call.body.get("started", [])),
        "fetch": (facts.seen, [call.body]),
    }
    place, named = places.get(call.call, (facts.seen, []))
    for value in named:
        task = _parse_answer(call, TaskRef, value)
        place[task.task_id].append(TaskObservation(call, task))


def _read_claims(call: RecordedCall) -> Iterator[lifecycle.Claimed]:
    if call.call == "claim_many":
        yield from _parse_answer(call, lifecycle.ClaimedMany, call.body).claimed
    elif call.body.get("status") == "Claimed":
        yield _parse_answer(call, lifecycle.Claimed, call.body)


def _parse_answer(call: RecordedCall, model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Unreadable(f"line {call.line}: not a response to {call.call}: {error}") from error
