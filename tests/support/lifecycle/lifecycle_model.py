"""A model of the specified task lifecycle, without Postgres, HTTP or time."""

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, str]
"""Job and scope, which identify a task of the model's DAG."""
Answer = tuple[Any, ...]

DAG = """
name: machine
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: work
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [out]
    max_attempts: 3
    config: {sql: "SELECT 1 FROM ranges"}
  - name: capped
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [capped]
    max_attempts: 2
    scaling: {max_concurrency: 1}
    config: {sql: "SELECT 2 FROM ranges"}
  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [done]
    max_attempts: 1
    config: {sql: "SELECT 1 FROM out"}
"""
MAX_ATTEMPTS = {"work": 3, "capped": 2, "after": 1}
CAP = {"capped": 1}
CONSUMERS = {"request": ("work", "capped"), "work": ("after",), "capped": (), "after": ()}
RANGES = ("p:0-9", "p:10-19", "p:20-29", "p:30-39")
SCOPES = (*RANGES[:2], "c:1", "c:2")
KEYS: tuple[Key, ...] = (
    *((job, scope) for job in ("work", "capped") for scope in RANGES),
    *(("after", scope) for scope in SCOPES),
)

# The worker stopped sending heartbeats. `worker_gone` and `lease_expired` both count as this: which
# one is recorded depends on whether the queue answered.
SILENT = "silent"


@dataclass
class Task:
    status: str = "Queued"
    attempt: int = 1
    lease: str | None = None
    cancel: bool = False
    reaped: bool = False
    content: str | None = None
    """Content of the completion."""
    retry: str | None = None
    """`waiting` or `due`."""
    expired: bool = False
    overdue: bool = False


@dataclass(frozen=True)
class Fence:
    key: Key
    attempt: int
    lease: str


@dataclass(frozen=True)
class Report:
    """Content of a completion. Equal reports are repetitions of one call."""

    status: str
    retryable: bool = True
    message: str | None = None
    scopes: tuple[str, ...] = ()
    publishes: bool = False


@dataclass
class Model:
    tasks: dict[Key, Task] = field(default_factory=dict)
    ended: dict[tuple[Key, int], tuple[str, str | None]] = field(default_factory=dict)
    """Outcome and cause of every ended attempt."""
    events: dict[tuple[Key, str], tuple[int, bool]] = field(default_factory=dict)
    """By producer and scope: the attempt that emitted the event, and whether it was routed."""
    outbox: Counter[tuple[str, Any]] = field(default_factory=Counter)
    partitions: dict[tuple[str, str], Fence] = field(default_factory=dict)
    """By job and scope: the attempt that committed the partition, without its lease."""
    messages: Counter[tuple[str, Any]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        # Not a field, because the databases are not compared with it: the last attempts of retried tasks.
        self.last_attempts: dict[Key, int] = {}

    def copy(self) -> "Model":
        return deepcopy(self)

    # --- claims -----------------------------------------------------------------------------

    def claim(self, key: Key, lease: str) -> Answer:
        task = self.tasks.get(key)
        if task is None:
            return ("NotClaimed", "NotFound")
        if task.status == "Queued" and self._free_slots(key[0]):
            task.status, task.lease = "Running", lease
            return ("Claimed", task.attempt, lease)
        reasons = {"Running": "AlreadyRunning", "Completed": "Completed", "Canceled": "Canceled"}
        return ("NotClaimed", reasons.get(task.status, "NotReady"))

    def claimable(self, max_tasks: int) -> int:
        """Return how many tasks one `claim-many` call gets when no other call runs."""
        queued = Counter(job for (job, _), task in self.tasks.items() if task.status == "Queued")
        free = min(max_tasks, sum(n for job, n in queued.items() if job not in CAP))
        capped = sum(min(queued[job], self._free_slots(job)) for job in CAP)
        return free + min(max_tasks - free, capped)

    def _free_slots(self, job: str) -> int:
        running = sum(t.status == "Running" for (j, _), t in self.tasks.items() if j == job)
        return max(0, CAP[job] - running) if job in CAP else 1_000

    # --- calls of an attempt ----------------------------------------------------------------

    def heartbeat(self, fence: Fence) -> Answer:
        task = self.tasks[fence.key]
        if not self._running(fence):
            return self._refusal(fence)
        task.expired = False
        return (200, task.cancel)

    def complete(self, fence: Fence, report: Report) -> Answer:
        task = self.tasks[fence.key]
        late = task.status in ("Failed", "Canceled") and task.reaped
        if self._current(fence) and (task.status == "Running" or late):
            self._end(fence, report)
            return (200, task.status)
        if self._current(fence) and task.content is not None:
            same = task.content == repr(report)
            return (200, task.status) if same else (409, "completion_mismatch")
        return self._refusal(fence)

    def _end(self, fence: Fence, report: Report) -> None:
        task = self.tasks[fence.key]
        failed = report.status == "Failed"
        retries = failed and report.retryable and not task.cancel
        task.status = "Canceled" if failed and task.cancel else report.status
        task.retry = "waiting" if retries and self._attempts_left(fence.key) else None
        task.content, task.reaped = repr(report), False
        task.expired = task.overdue = False
        before = self.ended.get((fence.key, fence.attempt), ("", None))
        self.ended[fence.key, fence.attempt] = (task.status, before[1])
        self._record(fence, report.scopes)
        if report.publishes:
            job, scope = fence.key
            partition = scope if scope.startswith("p:") else "p:all"
            if not report.scopes:
                self._record(fence, [partition])  # the publication announces itself
            self.partitions[job, partition] = Fence(fence.key, fence.attempt, "")
        self._wake_next(fence.key[0])

    def emit(self, fence: Fence, scopes: tuple[str, ...]) -> Answer:
        if not self._running(fence):
            return self._refusal(fence)
        return (200, self._record(fence, scopes))

    def _record(self, fence: Fence, scopes: Iterable[str]) -> int:
        fresh = {scope for scope in scopes if (fence.key, scope) not in self.events}
        for scope in fresh:
            self.events[fence.key, scope] = (fence.attempt, False)
            self.outbox["route_event", (fence.key, scope)] += 1
        return len(fresh)

    def fetch(self, key: Key) -> Answer:
        task = self.tasks.get(key)
        if task is None:
            return (404,)
        to_stop = task.cancel and task.status == "Running"
        return (200, "Canceled" if to_stop else task.status, task.attempt, task.cancel)

    def _current(self, fence: Fence) -> bool:
        task = self.tasks[fence.key]
        return (task.attempt, task.lease) == (fence.attempt, fence.lease)

    def _running(self, fence: Fence) -> bool:
        return self._current(fence) and self.tasks[fence.key].status == "Running"

    def _refusal(self, fence: Fence) -> Answer:
        task = self.tasks[fence.key]
        if task.attempt != fence.attempt:
            return (409, "stale_attempt")
        return (409, "not_running" if task.lease == fence.lease else "stale_lease")

    def _attempts_left(self, key: Key) -> bool:
        return self.tasks[key].attempt < self.last_attempts.get(key, MAX_ATTEMPTS[key[0]])

    def _wake_next(self, job: str) -> None:
        if job in CAP:
            self.outbox["wake_next", job] += 1

    # --- users ------------------------------------------------------------------------------

    def trigger(self, scope: str) -> Answer:
        key = ("request", scope)
        if key in self.tasks:
            self._run_again(scope)
            return (200, False)
        self.tasks[key] = Task("Completed")
        self.events[key, scope] = (1, False)
        self.outbox["route_event", (key, scope)] += 1
        return (200, True)

    def _run_again(self, scope: str) -> None:
        """Retry the failed tasks of a scope that is triggered again, and queue its canceled ones."""
        for key, task in list(self.tasks.items()):
            if key[1] != scope:
                continue
            if task.status == "Failed" and task.retry is None:
                task.retry = "due"
                self.last_attempts[key] = task.attempt + MAX_ATTEMPTS[key[0]]
            elif task.status == "Canceled" or (task.status == "Running" and task.cancel):
                if task.status == "Running":
                    self.ended.setdefault((key, task.attempt), ("Canceled", None))
                last = self.last_attempts.get(key, MAX_ATTEMPTS[key[0]])
                self.last_attempts[key] = task.attempt + last
                self.tasks[key] = Task(attempt=task.attempt + (task.lease is not None))
                self.outbox["wake_up", wake_subject(key)] += 1

    def cancel(self, key: Key) -> Answer:
        task = self.tasks.get(key)
        if task is None:
            return (404,)
        if task.status == "Running":
            task.cancel = True
        elif task.status == "Queued" or task.retry:
            task.status, task.cancel, task.retry, task.reaped = "Canceled", True, None, False
        elif task.status != "Canceled":
            return (409,)
        return (200, task.status)

    # --- time and the loops -----------------------------------------------------------------

    def overdue(self) -> list[Key]:
        return [k for k, t in self.tasks.items() if t.status == "Running" and _is_late(t)]

    def reap(self, keys: Iterable[Key]) -> None:
        for key in keys:
            task = self.tasks[key]
            retries = self._attempts_left(key) and not task.cancel
            task.status = "Canceled" if task.cancel else "Failed"
            task.reaped, task.retry = True, "waiting" if retries else None
            cause = SILENT if task.expired else "hard_timeout"
            self.ended[key, task.attempt] = (task.status, cause)
            task.expired = task.overdue = False
            self._wake_next(key[0])

    def due(self) -> list[Key]:
        return [key for key, task in self.tasks.items() if task.retry == "due"]

    def start_next(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.tasks[key] = Task(attempt=self.tasks[key].attempt + 1)
            self.outbox["wake_up", wake_subject(key)] += 1

    def publish(self) -> int:
        """Run one pass of the outbox publisher. Rows it adds wait for the next pass."""
        batch, self.outbox = self.outbox, Counter()
        for kind in ("route_event", "wake_up", "wake_next", "buffer_message"):
            for (_, subject), n in [i for i in batch.items() if i[0][0] == kind]:
                self._perform(kind, subject, n)
        return sum(batch.values())

    def _perform(self, kind: str, subject: Any, n: int) -> None:
        if kind == "route_event":
            self._route(subject)
        elif kind == "wake_next":
            queued = [k for k, t in self.tasks.items() if k[0] == subject and t.status == "Queued"]
            woken = min(self._free_slots(subject), len(queued))
            self.outbox += Counter({("wake_up", subject): woken})
        else:
            self.messages["buffer" if kind == "buffer_message" else "ecs_python", subject] += n

    def _route(self, event: tuple[Key, str]) -> None:
        (job, _), scope = event
        self.events[event] = (self.events[event][0], True)
        for consumer in CONSUMERS[job]:
            if (consumer, scope) not in self.tasks:
                self.tasks[consumer, scope] = Task()
                self.messages["ecs_python", wake_subject((consumer, scope))] += 1


def wake_subject(key: Key) -> Key | str:
    """Return the subject of a wake-up. The Dispatcher chooses which task of a capped job it wakes,
    so the model only counts these wake-ups per job.
    """
    return key[0] if key[0] in CAP else key


def _is_late(task: Task) -> bool:
    return task.expired or task.overdue
