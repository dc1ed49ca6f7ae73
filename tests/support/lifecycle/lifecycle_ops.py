"""Steps of the lifecycle: how to run each on a real Dispatcher, and what the model expects from it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any
from uuid import UUID, uuid4

import httpx

from support.lifecycle.lifecycle_model import Answer, Fence, Key, Model, Report
from support.lifecycle.recorder import Recorder
from support.services.dispatcher import Live

Outcomes = Iterator[tuple[Answer, Model]]


@dataclass(frozen=True)
class HeldAttempt:
    """A claimed attempt as its worker received it."""

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

    def forged(self) -> "HeldAttempt":
        """Return the same attempt with a lease that was never granted."""
        return replace(self, fence=replace(self.fence, lease=str(UUID(int=1))))


@dataclass
class StepContext:
    """What a step needs: one replica, its clients, and the mapping between tasks and keys."""

    live: Live
    internal: httpx.Client
    user: httpx.Client
    recorder: Recorder
    ids: dict[Key, str]
    keys: dict[str, Key]
    execute: Any
    """Runs a statement on Postgres state and returns its rows."""
    claimed_attempts: list[HeldAttempt] = field(default_factory=list)
    """Attempts that this step claimed."""

    def task_id(self, key: Key) -> str:
        return self.ids.get(key) or str(uuid4())

    def worker(self, path: str, **body: Any) -> httpx.Response:
        headers = {"X-Trace-Worker-Token": self.live.secrets.worker_token}
        return self.internal.post(path, json=body, headers=headers)

    def task(self, path: str, held: HeldAttempt, **fields: Any) -> httpx.Response:
        headers = {"X-Trace-Task-Capability": held.claimed["capability_token"]}
        return self.internal.post(path, json=held.body(**fields), headers=headers)

    def grant(self, claimed: dict[str, Any]) -> Answer:
        key = self.keys[claimed["task"]["task_id"]]
        fence = Fence(key, claimed["attempt"], claimed["lease_token"])
        self.claimed_attempts.append(HeldAttempt(fence, claimed))
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
    """One step. `outcomes` yields every result the model allows, also when other steps run concurrently."""

    def run(self, context: StepContext) -> Answer:
        raise NotImplementedError

    def outcomes(self, model: Model, actual: Answer, alone: bool) -> Outcomes:
        after = model.copy()
        yield self.expect(after, actual), after

    def expect(self, model: Model, actual: Answer) -> Answer:
        raise NotImplementedError

    def summary(self, answer: Answer) -> str:
        """Summarise the step and its answer without names, for statistics."""
        parts = [str(part) for part in answer[:2]]
        return f"{type(self).__name__} {' '.join(part for part in parts if len(part) < 25)}".strip()


# --- workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim(Step):
    key: Key

    def run(self, context: StepContext) -> Answer:
        reply = context.worker(
            "/internal/task-claim", task_id=context.task_id(self.key), worker_id="w"
        )
        if reply.status_code != 200:
            return refusal(reply)
        body = reply.json()
        return (
            context.grant(body) if body["status"] == "Claimed" else ("NotClaimed", body["reason"])
        )

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.claim(self.key, actual[2] if actual[0] == "Claimed" else "not granted")


@dataclass(frozen=True)
class ClaimMany(Step):
    max_tasks: int

    def run(self, context: StepContext) -> Answer:
        reply = context.worker(
            "/internal/task-claim-many",
            runtime="ecs_python",
            worker_id="w",
            max_tasks=self.max_tasks,
        )
        if reply.status_code != 200:
            return refusal(reply)
        for claimed in reply.json()["claimed"]:
            context.grant(claimed)
        return tuple(
            (h.fence.key, h.fence.attempt, h.fence.lease) for h in context.claimed_attempts
        )

    def summary(self, answer: Answer) -> str:
        return f"ClaimMany {len(answer)} of {self.max_tasks}"

    def outcomes(self, model: Model, actual: Answer, alone: bool) -> Outcomes:
        if actual[:1] == (503,):
            return
        after = model.copy()
        expected = model.claimable(self.max_tasks)
        # Concurrent steps may lock rows, which this claim then skips.
        if len(actual) == expected or (not alone and len(actual) < expected):
            yield tuple((key, *after.claim(key, lease)[1:]) for key, _, lease in actual), after


@dataclass(frozen=True)
class Heartbeat(Step):
    held: HeldAttempt

    def run(self, context: StepContext) -> Answer:
        reply = context.task("/v1/task/heartbeat", self.held)
        return accepted_or_refusal(reply, "cancel_requested")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.heartbeat(self.held.fence)


@dataclass(frozen=True)
class Complete(Step):
    held: HeldAttempt
    report: Report

    def run(self, context: StepContext) -> Answer:
        published = [self._publication(context)] if self.report.publishes else []
        reply = context.task(
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

    def _publication(self, context: StepContext) -> dict[str, Any]:
        """Write the attempt's marker. Returns the publication to send."""
        ref = self.held.output["storage_ref"]
        directory = context.live.objects / ref["bucket"] / ref["prefix"]
        directory.mkdir(parents=True, exist_ok=True)
        marker = {"files": [], "rows": 0, "bytes": 0, "schema": []}
        new_file = (
            directory / f"{uuid4()}.new"
        )  # several threads may complete the same attempt concurrently
        new_file.write_text(json.dumps(marker))
        new_file.replace(directory / "_SUCCESS")
        scope = self.held.claimed["task"]["scope"]
        return {
            "dataset_uuid": self.held.output["dataset_uuid"],
            "dataset_version": self.held.output["dataset_version"],
            "storage_ref": ref,
            "range_start": scope["start"],
            "range_end": scope["end"],
            **({} if scope["partition_key"] else {"partition_key": "all"}),
        }


def event(held: HeldAttempt, scope: str) -> dict[str, Any]:
    kind, _, name = scope.partition(":")
    if kind == "c":
        fields: dict[str, Any] = {"cursor": int(name)}
    else:
        start, _, end = name.partition("-")
        fields = {"partition_key": name, "start": int(start), "end": int(end)}
    return {
        "dataset_uuid": held.output["dataset_uuid"],
        "dataset_version": held.output["dataset_version"],
        **fields,
    }


@dataclass(frozen=True)
class Emit(Step):
    held: HeldAttempt
    scopes: tuple[str, ...]

    def run(self, context: StepContext) -> Answer:
        events = [event(self.held, scope) for scope in self.scopes]
        reply = context.task("/v1/task/events", self.held, events=events)
        return accepted_or_refusal(reply, "accepted")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.emit(self.held.fence, self.scopes)


@dataclass(frozen=True)
class Fetch(Step):
    key: Key

    def run(self, context: StepContext) -> Answer:
        headers = {"X-Trace-Worker-Token": context.live.secrets.worker_token}
        query = {"task_id": context.task_id(self.key)}
        reply = context.internal.get("/internal/task-fetch", params=query, headers=headers)
        if reply.status_code == 404:
            return (404,)
        return accepted_or_refusal(reply, "status", "attempt", "cancel_requested")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.fetch(self.key)


# --- users --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trigger(Step):
    scope: str

    def run(self, context: StepContext) -> Answer:
        start, _, end = self.scope.removeprefix("p:").partition("-")
        body = {"dag": "machine", "job": "request", "start": int(start), "end": int(end)}
        return accepted_or_refusal(context.user.post("/v1/triggers", json=body), "created")

    def expect(self, model: Model, actual: Answer) -> Answer:
        return model.trigger(self.scope)


@dataclass(frozen=True)
class Cancel(Step):
    key: Key

    def run(self, context: StepContext) -> Answer:
        reply = context.user.post(f"/v1/tasks/{context.task_id(self.key)}/cancel")
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
class MoveIntoPast(Step):
    """Move the lease expiry, deadline or retry time of a task into the past."""

    key: Key
    flag: str

    def run(self, context: StepContext) -> Answer:
        task_id = context.task_id(self.key)
        context.recorder.record_expiry(task_id)
        context.execute(_PAST[self.flag], (task_id,))
        return ()

    def expect(self, model: Model, actual: Answer) -> Answer:
        task = model.tasks.get(self.key)
        if task is not None and self.flag == "retry" and task.retry:
            task.retry = "due"
        elif task is not None and self.flag != "retry" and task.status == "Running":
            setattr(task, self.flag, True)
        return ()


# --- loops --------------------------------------------------------------------------------------


class LoopPass(Step):
    """One pass of a loop. It may skip rows that concurrent steps have locked."""

    call: str

    def run(self, context: StepContext) -> Answer:
        step = {"reap": "reaper.reap_once", "retry": "retries.retry_once"}[self.call]
        part, _, name = step.partition(".")
        once = getattr(getattr(context.live.service, part), name)
        return (context.recorder.record_step(self.call, lambda: context.live.run(once)),)

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
class Reap(LoopPass):
    call = "reap"

    def ready(self, model: Model) -> list[Key]:
        return model.overdue()

    def perform(self, model: Model, keys: list[Key]) -> None:
        model.reap(keys)


@dataclass(frozen=True)
class Retry(LoopPass):
    call = "retry"

    def ready(self, model: Model) -> list[Key]:
        return model.due()

    def perform(self, model: Model, keys: list[Key]) -> None:
        model.start_next(keys)


@dataclass(frozen=True)
class Publish(Step):
    """One pass of the outbox publisher."""

    def run(self, context: StepContext) -> Answer:
        once = context.live.service.publisher.publish_once
        return (context.recorder.record_step("publish", lambda: context.live.run(once)),)

    def expect(self, model: Model, actual: Answer) -> Answer:
        return (model.publish(),)
