"""Steps of the lifecycle: how each is done for real, and what the model says must come of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any
from uuid import UUID, uuid4

import httpx

from support.dispatcher import Live
from support.lifecycle_model import Answer, Fence, Key, Model, Report
from support.recorder import Recorder

Outcomes = Iterator[tuple[Answer, Model]]


@dataclass(frozen=True)
class Held:
    """An attempt as its worker was handed it."""

    fence: Fence
    claimed: dict[str, Any] = field(repr=False)

    def body(self, **fields: Any) -> dict[str, Any]:
        task_id = self.claimed["task"]["task_id"]
        return {
            "task_id": task_id,
            "attempt": self.fence.attempt,
            "lease_token": self.fence.lease,
            **fields,
        }

    @property
    def output(self) -> dict[str, Any]:
        return self.claimed["task"]["outputs"][0]

    def forged(self) -> "Held":
        """The same attempt under a lease that was never granted."""
        return replace(self, fence=replace(self.fence, lease=str(UUID(int=1))))


@dataclass
class Hand:
    """What a step works with: one replica, its clients, and names for the rows."""

    live: Live
    internal: httpx.Client
    user: httpx.Client
    recorder: Recorder
    ids: dict[Key, str]
    keys: dict[str, Key]
    execute: Any
    """Runs a statement on Postgres state and returns its rows."""
    won: list[Held] = field(default_factory=list)
    """Attempts that this step was granted."""

    def task_id(self, key: Key) -> str:
        return self.ids.get(key) or str(uuid4())

    def worker(self, path: str, **body: Any) -> httpx.Response:
        headers = {"X-Trace-Worker-Token": self.live.secrets.worker_token}
        return self.internal.post(path, json=body, headers=headers)

    def task(self, path: str, held: Held, **fields: Any) -> httpx.Response:
        headers = {"X-Trace-Task-Capability": held.claimed["capability_token"]}
        return self.internal.post(path, json=held.body(**fields), headers=headers)

    def grant(self, claimed: dict[str, Any]) -> Answer:
        key = self.keys[claimed["task"]["task_id"]]
        fence = Fence(key, claimed["attempt"], claimed["lease_token"])
        self.won.append(Held(fence, claimed))
        return ("Claimed", fence.attempt, fence.lease)


def refusal(reply: httpx.Response) -> Answer:
    body = reply.json()
    return (reply.status_code, body.get("reason") or body["code"])


def accepted_or_refusal(reply: httpx.Response, *names: str) -> Answer:
    if reply.status_code != 200:
        return refusal(reply)
    body = reply.json()
    return (200, *(body[name] for name in names))


class Step:
    """Something that happens. `outcomes` are all the model allows when others are about."""

    def run(self, hand: Hand) -> Answer:
        raise NotImplementedError

    def outcomes(self, model: Model, actual: Answer, alone: bool) -> Outcomes:
        after = model.copy()
        yield self.expect(after, actual), after

    def expect(self, model: Model, actual: Answer) -> Answer:
        raise NotImplementedError

    def summary(self, answer: Answer) -> str:
        """What happened, without the names: for statistics."""
        words = [str(part) for part in answer[:2]]
        return f"{type(self).__name__} {' '.join(w for w in words if len(w) < 25)}".strip()


# --- workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim(Step):
    key: Key

    def run(self, hand: Hand) -> Answer:
        reply = hand.worker("/internal/task-claim", task_id=hand.task_id(self.key), worker_id="w")
        if reply.status_code != 200:
            return refusal(reply)
        body = reply.json()
        return hand.grant(body) if body["status"] == "Claimed" else ("NotClaimed", body["reason"])

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.claim(self.key, actual[2] if actual[0] == "Claimed" else "not granted")


@dataclass(frozen=True)
class ClaimMany(Step):
    places: int

    def run(self, hand: Hand) -> Answer:
        reply = hand.worker(
            "/internal/task-claim-many",
            runtime="ecs_python",
            worker_id="w",
            max_tasks=self.places,
        )
        if reply.status_code != 200:
            return refusal(reply)
        for claimed in reply.json()["claimed"]:
            hand.grant(claimed)
        return tuple((h.fence.key, h.fence.attempt, h.fence.lease) for h in hand.won)

    def summary(self, answer: Answer) -> str:
        return f"ClaimMany {len(answer)} of {self.places}"

    def outcomes(self, model: Model, actual: Answer, alone: bool) -> Outcomes:
        if actual[:1] == (503,):
            return
        after = model.copy()
        most = model.claimable(self.places)
        # With others about, rows they hold are skipped.
        if len(actual) == most or (not alone and len(actual) < most):
            yield tuple((key, *after.claim(key, lease)[1:]) for key, _, lease in actual), after


@dataclass(frozen=True)
class Heartbeat(Step):
    held: Held

    def run(self, hand: Hand) -> Answer:
        reply = hand.task("/v1/task/heartbeat", self.held)
        return accepted_or_refusal(reply, "cancel_requested")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.heartbeat(self.held.fence)


@dataclass(frozen=True)
class Complete(Step):
    held: Held
    report: Report

    def run(self, hand: Hand) -> Answer:
        published = [self._publication(hand)] if self.report.publishes else []
        reply = hand.task(
            "/v1/task/complete",
            self.held,
            status=self.report.status,
            retryable=self.report.retryable,
            error_message=self.report.message,
            events=[event(self.held, scope) for scope in self.report.scopes],
            datasets_published=published,
        )
        return accepted_or_refusal(reply, "task_status")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.complete(self.held.fence, self.report)

    def _publication(self, hand: Hand) -> dict[str, Any]:
        """Leave the attempt's files and marker behind, and say how they are published."""
        ref = self.held.output["storage_ref"]
        place = hand.live.objects / ref["bucket"] / ref["prefix"]
        place.mkdir(parents=True, exist_ok=True)
        marker = {"files": [], "rows": 0, "bytes": 0, "schema": []}
        fresh = place / f"{uuid4()}.new"  # the same attempt may be completed by many at once
        fresh.write_text(json.dumps(marker))
        fresh.replace(place / "_SUCCESS")
        scope = self.held.claimed["task"]["scope"]
        return {
            "dataset_uuid": self.held.output["dataset_uuid"],
            "dataset_version": self.held.output["dataset_version"],
            "storage_ref": ref,
            "range_start": scope["start"],
            "range_end": scope["end"],
        }


def event(held: Held, scope: str) -> dict[str, Any]:
    kind, _, name = scope.partition(":")
    if kind == "c":
        place: dict[str, Any] = {"cursor": int(name)}
    else:
        start, _, end = name.partition("-")
        place = {"partition_key": name, "start": int(start), "end": int(end)}
    return {
        "dataset_uuid": held.output["dataset_uuid"],
        "dataset_version": held.output["dataset_version"],
        **place,
    }


@dataclass(frozen=True)
class Emit(Step):
    held: Held
    scopes: tuple[str, ...]

    def run(self, hand: Hand) -> Answer:
        events = [event(self.held, scope) for scope in self.scopes]
        reply = hand.task("/v1/task/events", self.held, events=events)
        return accepted_or_refusal(reply, "accepted")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.emit(self.held.fence, self.scopes)


@dataclass(frozen=True)
class PublishBatch(Step):
    held: Held
    batch: str

    def run(self, hand: Hand) -> Answer:
        reply = hand.task(
            "/v1/task/buffer-publish",
            self.held,
            batch_uri=self.batch,
            dataset_uuid=self.held.output["dataset_uuid"],
        )
        return accepted_or_refusal(reply, "publish_id")

    def expect(self, model: Model, actual: Answer) -> Answer:
        drawn = actual[1] if actual[0] == 200 else "not drawn"
        return model.publish_batch(self.held.fence, self.batch, drawn)


@dataclass(frozen=True)
class Fetch(Step):
    key: Key

    def run(self, hand: Hand) -> Answer:
        headers = {"X-Trace-Worker-Token": hand.live.secrets.worker_token}
        query = {"task_id": hand.task_id(self.key)}
        reply = hand.internal.get("/internal/task-fetch", params=query, headers=headers)
        if reply.status_code == 404:
            return (404,)
        return accepted_or_refusal(reply, "status", "attempt", "cancel_requested")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.fetch(self.key)


# --- people -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trigger(Step):
    scope: str

    def run(self, hand: Hand) -> Answer:
        start, _, end = self.scope.removeprefix("p:").partition("-")
        body = {"dag": "machine", "job": "request", "start": int(start), "end": int(end)}
        return accepted_or_refusal(hand.user.post("/v1/triggers", json=body), "created")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.trigger(self.scope)


@dataclass(frozen=True)
class Cancel(Step):
    key: Key

    def run(self, hand: Hand) -> Answer:
        reply = hand.user.post(f"/v1/tasks/{hand.task_id(self.key)}/cancel")
        return accepted_or_refusal(reply, "status")[: 2 if reply.status_code == 200 else 1]

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.cancel(self.key)


# --- time ---------------------------------------------------------------------------------------


_PAST = {
    flag: f"UPDATE tasks SET {column} = now() - interval '1 s' WHERE task_id = %s AND {condition}"
    for flag, column, condition in (
        ("expired", "lease_expires_at", "status = 'Running'"),
        ("overdue", "deadline_at", "status = 'Running'"),
        ("retry", "retry_at", "retry_at IS NOT NULL"),
    )
}


@dataclass(frozen=True)
class Pass(Step):
    """Move a moment of a task into the past."""

    key: Key
    flag: str

    def run(self, hand: Hand) -> Answer:
        task_id = hand.task_id(self.key)
        hand.recorder.expired(task_id)
        hand.execute(_PAST[self.flag], (task_id,))
        return ()

    def expect(self, model: Model, actual: Answer) -> Answer:
        task = model.tasks.get(self.key)
        if task is not None and self.flag == "retry" and task.retry:
            task.retry = "due"
        elif task is not None and self.flag != "retry" and task.status == "Running":
            setattr(task, self.flag, True)
        return ()


# --- loops --------------------------------------------------------------------------------------


class Batch(Step):
    """A pass of a loop. With others about, it may skip rows they hold."""

    call: str

    def run(self, hand: Hand) -> Answer:
        step = {"reap": "reaper.reap_once", "retry": "retries.retry_once"}[self.call]
        part, _, name = step.partition(".")
        once = getattr(getattr(hand.live.service, part), name)
        return (hand.recorder.note(self.call, lambda: hand.live.run(once)),)

    def outcomes(self, model: Model, actual: Answer, alone: bool) -> Outcomes:
        ready = self.ready(model)
        sizes = [len(ready)] if alone else range(len(ready) + 1)
        for keys in chain.from_iterable(combinations(ready, n) for n in sizes):
            after = model.copy()
            self.perform(after, list(keys))
            yield (len(keys),), after

    def ready(self, model: Model) -> list[Key]:
        raise NotImplementedError

    def perform(self, model: Model, keys: list[Key]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Reap(Batch):
    call = "reap"

    def ready(self, model: Model) -> list[Key]:
        return model.overdue()

    def perform(self, model: Model, keys: list[Key]) -> None:
        model.reap(keys)


@dataclass(frozen=True)
class Retry(Batch):
    call = "retry"

    def ready(self, model: Model) -> list[Key]:
        return model.due()

    def perform(self, model: Model, keys: list[Key]) -> None:
        model.start_next(keys)


@dataclass(frozen=True)
class Publish(Step):
    """One pass of the outbox publisher."""

    def run(self, hand: Hand) -> Answer:
        once = hand.live.service.publisher.publish_once
        return (hand.recorder.note("publish", lambda: hand.live.run(once)),)

    def expect(self, model: Model, actual: Answer) -> Answer:
        return (model.publish(),)
