"""The worker's loop: be woken, claim, hand to a free slot."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import structlog
from pydantic import ValidationError

from trace_etl.api.messages import WakeUp
from trace_etl.api.task import lifecycle as wire
from trace_etl.dag.operators import OPERATORS
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.policy.retry import Backoff
from trace_etl.queues.pgqueue import CONNECTION_LOST, Consumer, Message
from trace_etl.worker.attempt import Attempt, Runner

_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 5)
_log = structlog.stdlib.get_logger()
# Long enough for a claim; a message whose worker died comes back after it.
_HIDDEN = timedelta(seconds=30)
_MOST_ENDLESS = 64


class Slots:
    """Runs at most `size` attempts at once, and beside them those that never end."""

    def __init__(
        self,
        consumer: Consumer,
        client: DispatcherClient,
        runner: Runner,
        *,
        worker_id: str,
        size: int,
        stop: threading.Event,
    ) -> None:
        self._consumer = consumer
        self._client = client
        self._runner = runner
        self._worker_id = worker_id
        self._stop = stop
        self._free = threading.Semaphore(size)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="slot")
        self._endless = ThreadPoolExecutor(_MOST_ENDLESS, thread_name_prefix="endless")

    def run(self) -> None:
        """Claim and run until asked to stop; then give running attempts back and return."""
        failures = 0
        while not self._stop.is_set():
            try:
                self._turn()
                failures = 0
            except (*CONNECTION_LOST, Unreachable) as error:
                failures += 1
                _log.warning("worker_waits", failures=failures, error=repr(error))
                self._stop.wait(_FAILURE_BACKOFF.seconds(failures))
        self._threads.shutdown(wait=True)
        self._endless.shutdown(wait=True)

    def _turn(self) -> None:
        if not self._free.acquire(timeout=0.5):
            return
        self._free.release()
        messages = self._consumer.receive(limit=1, hidden=_HIDDEN)
        if not messages:
            self._consumer.wait(self._stop)
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        """Claim what the message names. Whatever the answer, the message has done its work."""
        try:
            task_id = WakeUp.model_validate(message.body).task_id
        except ValidationError as error:
            _log.error("not_a_wake_up", message_id=message.message_id, error=str(error))
            self._consumer.ack([message.message_id])
            return
        try:
            answer = self._client.claim(task_id, self._worker_id, self._stop)
        except Refused as refusal:
            # Ours to mend (a wrong token, say); the message stays for whoever can claim.
            _log.error("claim_refused", code=refusal.refusal, detail=refusal.detail)
            self._stop.wait(5.0)
            return
        if isinstance(answer, wire.Claimed):
            # Before the message goes: should that fail, the task is ours all the same.
            self._start(answer)
        else:
            _log.debug("not_claimed", task_id=str(task_id), reason=answer.reason)
        self._consumer.ack([message.message_id])

    def _start(self, claimed: wire.Claimed) -> None:
        attempt = Attempt(claimed, self._client, self._runner, self._stop)
        operator = OPERATORS.get(claimed.task.operator)
        if operator is not None and operator.never_ends:
            # A slot would never be free again; and mostly it waits for the next block.
            self._endless.submit(attempt.run).add_done_callback(_log_crash)
            return
        self._free.acquire()
        self._threads.submit(attempt.run).add_done_callback(self._finished)

    def _finished(self, future: Future[None]) -> None:
        self._free.release()
        _log_crash(future)


def _log_crash(future: Future[None]) -> None:
    if error := future.exception():
        _log.error("attempt_crashed", error=repr(error))
