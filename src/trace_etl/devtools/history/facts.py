"""From recorded calls to what the invariants speak about: grants, fenced calls, ends."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from trace_etl.api.task import events
from trace_etl.api.task import lifecycle as wire
from trace_etl.devtools.history.lines import Call, Outcome, Unreadable

Attempt = tuple[UUID, int]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Grant:
    """A lease that somebody was told to hold."""

    call: Call
    claimed: wire.Claimed

    @property
    def task_id(self) -> UUID:
        return self.claimed.task.task_id

    @property
    def attempt(self) -> int:
        return self.claimed.attempt


@dataclass(frozen=True)
class Said:
    """A call under a fence that was accepted, or may have been."""

    call: Call
    body: wire.Fenced

    @property
    def key(self) -> Attempt:
        return self.body.task_id, self.body.attempt

    @property
    def accepted(self) -> bool:
        return self.call.outcome == Outcome.ACCEPTED


class Named(BaseModel):
    """A task, and perhaps one attempt of it, that a loop or the clock touched."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_id: UUID
    attempt: int | None = None


@dataclass(frozen=True)
class Touched:
    call: Call
    task: Named


@dataclass
class Facts:
    """Everything known, by task and attempt."""

    grants: dict[UUID, list[Grant]] = field(
        default_factory=lambda: defaultdict[UUID, list[Grant]](list)
    )
    said: dict[UUID, list[Said]] = field(
        default_factory=lambda: defaultdict[UUID, list[Said]](list)
    )
    expired: dict[UUID, list[Touched]] = field(
        default_factory=lambda: defaultdict[UUID, list[Touched]](list)
    )
    """Time was moved past a lease or a deadline."""
    reaped: dict[UUID, list[Touched]] = field(
        default_factory=lambda: defaultdict[UUID, list[Touched]](list)
    )
    started: dict[UUID, list[Touched]] = field(
        default_factory=lambda: defaultdict[UUID, list[Touched]](list)
    )
    """The retry scheduler queued this attempt."""
    seen: dict[UUID, list[Touched]] = field(
        default_factory=lambda: defaultdict[UUID, list[Touched]](list)
    )
    """Somebody read the task, and saw it at this attempt."""

    def of(self, task_id: UUID, kind: type[M]) -> list[tuple[Said, M]]:
        """What was said of a task in calls of one kind."""
        found = self.said.get(task_id, [])
        return [(said, said.body) for said in found if isinstance(said.body, kind)]

    def granted(self, key: Attempt) -> list[Grant]:
        return [g for g in self.grants.get(key[0], []) if g.attempt == key[1]]


_FENCED: dict[str, type[wire.Fenced]] = {
    "heartbeat": wire.Heartbeat,
    "complete": wire.Complete,
    "events": events.Events,
    "buffer_publish": wire.BufferPublish,
}


def gather(calls: list[Call]) -> Facts:
    """Sort the calls into facts. Raises Unreadable for an accepted call that makes no sense."""
    facts = Facts()
    for call in calls:
        if call.call in _FENCED and call.outcome in (Outcome.ACCEPTED, Outcome.MAYBE):
            _add_said(facts, call)
        elif call.outcome == Outcome.ACCEPTED:
            _add_accepted(facts, call)
    return facts


def _add_said(facts: Facts, call: Call) -> None:
    try:
        body = _FENCED[call.call].model_validate(call.request)
    except ValidationError as error:
        if call.outcome == Outcome.MAYBE:
            return  # a malformed body can only have been refused
        raise Unreadable(f"line {call.line}: accepted, but malformed: {error}") from error
    facts.said[body.task_id].append(Said(call, body))


def _add_accepted(facts: Facts, call: Call) -> None:
    if call.call in ("claim", "claim_many"):
        for claimed in _claimed(call):
            facts.grants[claimed.task.task_id].append(Grant(call, claimed))
        return
    places = {
        "expire": (facts.expired, [call.request]),
        "reap": (facts.reaped, call.body.get("reaped", [])),
        "retry": (facts.started, call.body.get("started", [])),
        "fetch": (facts.seen, [call.body]),
    }
    place, named = places.get(call.call, (facts.seen, []))
    for value in named:
        task = _read(call, Named, value)
        place[task.task_id].append(Touched(call, task))


def _claimed(call: Call) -> Iterator[wire.Claimed]:
    if call.call == "claim_many":
        yield from _read(call, wire.ClaimedMany, call.body).claimed
    elif call.body.get("status") == "Claimed":
        yield _read(call, wire.Claimed, call.body)


def _read(call: Call, model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Unreadable(f"line {call.line}: not an answer to {call.call}: {error}") from error
