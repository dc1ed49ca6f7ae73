"""The worker's loop: receive a wake-up, claim its task, run it in a free slot."""

import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog
from pydantic import ValidationError

from trace_etl.api.messages import WakeUp
from trace_etl.api.task import lifecycle
from trace_etl.dag.operators import OPERATORS
from trace_etl.http.clients.dispatcher_client import (
    DispatcherClient,
    token_reader,
)
from trace_etl.policy.retry import Backoff
from trace_etl.queues.queue import Message, Queue, QueueConsumer, QueueUnavailable, endless_queue
from trace_etl.secret_store import SecretStore
from trace_etl.worker.attempt import Attempt, AttemptServices, Runner
from trace_etl.worker.batch_thread import BatchThread
from trace_etl.worker.settings import ConnectionSettings, ServedRuntimes

BACKOFF = Backoff.of_seconds(0.2, 15, jitter=0.3)
_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 5)
_log = structlog.stdlib.get_logger()
# Covers the claim and the first heartbeat of a task with the default lease.
_VISIBILITY = timedelta(seconds=60)
_WAIT = timedelta(seconds=20)
_CHECK_SLOTS = timedelta(seconds=1)
_MAX_ENDLESS = 64
_MAX_CLAIMS = 100  # in one call
_MAX_DELETES = 200  # in one statement


def work(
    cfg: ConnectionSettings,
    queue: Queue,
    runner: Runner,
    stop: threading.Event,
    secrets: SecretStore | None = None,
    served: ServedRuntimes | None = None,
) -> None:
    """Run attempts until `stop` is set."""
    served = served or cfg.served()
    worker_id = cfg.make_unique_id()
    consumer = queue.consumer(list(served.queues), worker_id)
    client = DispatcherClient(
        cfg.dispatcher_url, cfg.tls_ca, token_reader(cfg.worker_token_file), BACKOFF
    )
    try:
        Slots(
            consumer,
            client,
            runner,
            served,
            worker_id=worker_id,
            stop=stop,
            secrets=secrets,
            drain_seconds=cfg.drain_seconds,
        ).run()
    finally:
        consumer.close()
        client.close()


@contextmanager
def work_on_endless(
    cfg: ConnectionSettings,
    queue: Queue,
    runner: Runner,
    stop: threading.Event,
    secrets: SecretStore | None = None,
) -> Generator[None]:
    """Run the tasks that never end beside the block: they wait for no slot, nor until Spark is warm.

    Sets `stop` when the block ends, or if this work fails.
    """
    served = cfg.served()
    queues = {endless_queue(name): _MAX_ENDLESS for name in served.queues}
    endless = replace(served, queues=queues, slots=_MAX_ENDLESS)
    with ThreadPoolExecutor(1, "endless-slots") as thread:
        working = thread.submit(work, cfg, queue, runner, stop, secrets, endless)
        working.add_done_callback(lambda _: stop.set())
        try:
            yield
        finally:
            stop.set()
            working.result()


class Slots:
    """Run as many attempts at once as there are slots, plus attempts that never end.

    A wake-up stays hidden while its task runs, and is deleted when the Dispatcher has decided on
    the attempt. If the worker dies, the wake-up becomes visible again and wakes another worker.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        client: DispatcherClient,
        runner: Runner,
        served: ServedRuntimes,
        *,
        worker_id: str,
        stop: threading.Event,
        secrets: SecretStore | None = None,
        drain_seconds: float = 0.0,
    ) -> None:
        self._consumer = consumer
        self._client = client
        self._worker_id = worker_id
        self._stop = stop
        self._served = served
        self._drain_seconds = drain_seconds
        self._interrupt = threading.Event()
        self._used: Counter[str] = Counter()
        """Slots in use, by queue."""
        self._endless = 0
        """Attempts that run without a slot, because they never end."""
        self._changed = threading.Condition()
        self._services = AttemptServices.open(client, runner, secrets)
        self._claims = BatchThread("claims", self._claim, _MAX_CLAIMS)
        self._deletes = BatchThread("wake-ups", self._delete, _MAX_DELETES)

    def run(self) -> None:
        """Claim and run tasks until `stop` is set; then let running attempts end, or interrupt them."""
        try:
            self._receive_until_stopped()
            self._drain()
        finally:
            self._claims.close()
            self._services.close()
            self._deletes.close()

    def _receive_until_stopped(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._process_next()
                failures = 0
            except QueueUnavailable as error:
                failures += 1
                _log.warning("worker_waits", failures=failures, error=repr(error))
                self._stop.wait(_FAILURE_BACKOFF.seconds(failures))

    def _drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._used.total(), timeout=self._drain_seconds)
            self._interrupt.set()
            self._changed.wait_for(lambda: not self._used.total() and not self._endless)

    def _process_next(self) -> None:
        queues = self._wait_for_slot()
        if not queues:
            self._consumer.stay_connected()  # a worker without a connection counts as gone
            return
        if self._stop.is_set():
            return
        # Look again soon for a queue whose slots are all used now.
        wait = _WAIT if len(queues) == len(self._served.queues) else _CHECK_SLOTS
        messages = self._consumer.receive(
            limit=min(_MAX_CLAIMS, *queues.values()),
            visibility=_VISIBILITY,
            wait=wait,
            stop=self._stop,
            queues=list(queues),
        )
        for message in messages:
            self._use_slot(message.queue, 1)
            self._claims.put(message)

    def _wait_for_slot(self) -> dict[str, int]:
        """Return the queues with free slots, and their number. Waits a second for the first one."""
        with self._changed:
            self._changed.wait_for(self._find_free, timeout=_CHECK_SLOTS.total_seconds())
            return self._find_free()

    def _find_free(self) -> dict[str, int]:
        room = self._served.slots - self._used.total()
        free = {queue: slots - self._used[queue] for queue, slots in self._served.queues.items()}
        return {queue: min(room, slots) for queue, slots in free.items() if min(room, slots) > 0}

    def _claim(self, messages: list[Message]) -> None:
        """Claim the tasks that wake-ups name, and start those whose claim succeeds."""
        if self._stop.is_set():
            self._give_back(messages)
            return
        wakes: dict[UUID, Message] = {}
        for message in messages:
            task_id = _read_wake_up(message)
            if task_id is None or task_id in wakes:
                self._end(message, is_decided=True)
            else:
                wakes[task_id] = message
        try:
            claimed = self._call_claim(list(wakes)) if wakes else {}
        except Exception as error:
            # Perhaps this worker is misconfigured (a wrong token, say): leave the messages to another one.
            _log.error("claim_failed", error=repr(error))
            self._stop.wait(5.0)
            for message in wakes.values():
                self._end(message, is_decided=False)
            return
        for task_id, message in wakes.items():
            if task_id in claimed:
                self._start(claimed[task_id], message)
            else:
                _log.debug("not_claimed", task_id=str(task_id))
                self._end(message, is_decided=True)

    def _give_back(self, messages: list[Message]) -> None:
        """Make wake-ups visible to other workers: this one claims nothing more."""
        for message in messages:
            try:
                self._consumer.delay(message, timedelta(0), counted=False)
            except QueueUnavailable as error:  # it becomes visible later
                _log.warning("wake_up_not_given_back", error=str(error))
            self._end(message, is_decided=False)

    def _call_claim(self, task_ids: list[UUID]) -> dict[UUID, lifecycle.Claimed]:
        if len(task_ids) > 1:
            return self._client.claim_many(task_ids, self._worker_id, self._stop)
        answer = self._client.claim(task_ids[0], self._worker_id, self._stop)
        return {task_ids[0]: answer} if isinstance(answer, lifecycle.Claimed) else {}

    def _start(self, claimed: lifecycle.Claimed, message: Message) -> None:
        heartbeat = timedelta(seconds=claimed.task.heartbeat_seconds)
        keep_hidden = partial(self._keep_hidden, message, max(_VISIBILITY, 4 * heartbeat))
        if 2 * heartbeat > _VISIBILITY:
            keep_hidden()
        end, stopping = partial(self._end, message), self._interrupt
        operator = OPERATORS.get(claimed.task.operator)
        if operator is not None and operator.never_ends:
            # A task that never ends takes no slot: it mostly waits for the next block.
            self._use_slot(message.queue, -1)
            self._use_slot(None, 1)
            end, stopping = partial(self._end, message, has_slot=False), self._stop
        Attempt(claimed, self._services, stopping, keep_hidden, end).start()

    def _end(self, message: Message, is_decided: bool, *, has_slot: bool = True) -> None:
        """Free the slot of a wake-up, which is deleted if the Dispatcher has decided on its task."""
        if is_decided:
            self._deletes.put(message)
        self._use_slot(message.queue if has_slot else None, -1)

    def _use_slot(self, queue: str | None, change: int) -> None:
        """Count a task that takes a slot of a queue, or none because it never ends."""
        with self._changed:
            if queue is None:
                self._endless += change
            else:
                self._used[queue] += change
            if change < 0:
                self._changed.notify_all()

    def _delete(self, messages: list[Message]) -> None:
        try:
            self._consumer.delete(*messages)
        except QueueUnavailable as error:
            # The next worker to receive them finds the tasks ended, and deletes them.
            _log.warning("wake_ups_not_deleted", count=len(messages), error=str(error))

    def _keep_hidden(self, message: Message, visibility: timedelta) -> None:
        try:
            self._consumer.extend(message, visibility)
        except QueueUnavailable as error:
            # If it becomes visible, another worker's claim is refused: the task still runs here.
            _log.warning("wake_up_not_extended", error=str(error))


def _read_wake_up(message: Message) -> UUID | None:
    try:
        return WakeUp.model_validate(message.body).task_id
    except ValidationError as error:
        _log.error("not_a_wake_up", queue=message.queue, error=str(error))
        return None
