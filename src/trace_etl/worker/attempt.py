"""One attempt: run the operator, keep the lease alive meanwhile, report the end."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import structlog

from trace_etl.api.task import events as news
from trace_etl.api.task import lifecycle as wire
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.spark.link import DispatcherLink

_log = structlog.stdlib.get_logger()
_MESSAGE_LIMIT = 8000


class Runner(Protocol):
    """Whatever runs operators: Spark here, a sandboxed child elsewhere."""

    def run(
        self, task: wire.TaskPayload, link: DispatcherLink | None = None
    ) -> wire.TaskResult: ...

    def cancel(self, task_id: UUID) -> None: ...


@dataclass
class Attempt:
    """A claimed task on its way to its end. Runs in a slot's thread."""

    claimed: wire.Claimed
    client: DispatcherClient
    runner: Runner
    stopping: threading.Event
    """Set when the worker is asked to stop: the attempt is given back."""

    _over: threading.Event = field(default_factory=threading.Event)
    _fate: str | None = None
    """Why the operator was interrupted: lost, canceled, timeout or stopped."""
    _hold: bool = False
    """The job is paused, as of the last heartbeat."""
    _unheard: int = 0
    """Heartbeats since one was answered."""

    def __post_init__(self) -> None:
        self._token = self.claimed.capability_token
        self._fence = wire.Fenced(
            task_id=self.claimed.task.task_id,
            attempt=self.claimed.attempt,
            lease_token=self.claimed.lease_token,
        )

    def run(self) -> None:
        """Run to the end and report it, unless the lease was lost on the way."""
        task = self.claimed.task
        log = _log.bind(task_id=str(task.task_id), attempt=task.attempt, job=task.job.name)
        log.info("attempt_started", operator=task.operator)
        began = time.monotonic()
        heart = threading.Thread(target=self._beat, name=f"heart-{task.task_id}", daemon=True)
        heart.start()
        body = self._outcome()
        self._over.set()
        heart.join()
        # What was finished all the same is reported: it counts until the next attempt starts.
        if self._fate == "lost" and body.status != "Completed":
            log.warning("attempt_abandoned")
            return
        self._report(body)
        log.info("attempt_ended", status=body.status, seconds=round(time.monotonic() - began, 3))

    # --- the operator -----------------------------------------------------------------------

    def _outcome(self) -> wire.Complete:
        try:
            link = DispatcherLink(
                self._fence.lease_token, self._emit, self._publish, lambda: self._hold
            )
            result = self.runner.run(self.claimed.task, link)
        except Exception as error:  # the operator is somebody's code: every failure is reported
            return self._failure(error)
        return self._body(
            "Completed",
            outputs=result.outputs,
            datasets_published=result.datasets_published,
            events=result.events,
            invalidations=result.invalidations,
        )

    def _emit(
        self, events: Sequence[wire.Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Events while the operator runs. Raises Refused when the lease is lost."""
        told = {"invalidations": list(invalidations)} if invalidations else {}
        body = {**self._fence.model_dump(), "events": list(events), **told}
        self.client.events(news.Events.model_validate(body), self._token, self.stopping)

    def _publish(
        self, dataset_uuid: UUID, batch_uri: str, *, record_count: int, batch_size_bytes: int
    ) -> None:
        """A batch of a buffered dataset. Raises Refused when the lease is lost."""
        body = wire.BufferPublish(
            **self._fence.model_dump(),
            dataset_uuid=dataset_uuid,
            batch_uri=batch_uri,
            record_count=record_count,
            batch_size_bytes=batch_size_bytes,
        )
        self.client.buffer_publish(body, self._token, self.stopping)

    def _failure(self, error: Exception) -> wire.Complete:
        if self._fate == "canceled":
            return self._body("Canceled", error_message="canceled on request")
        if self._fate == "timeout":
            seconds = self.claimed.task.timeout_seconds
            return self._failed("hard_timeout", f"ran longer than {seconds} s", retryable=True)
        if self._fate == "stopped":
            return self._failed("worker_stopped", "the worker was shut down", retryable=True)
        if isinstance(error, TraceError):
            return self._failed(error.code, error.detail, retryable=error.retryable)
        _log.exception("operator_failed", task_id=str(self._fence.task_id))
        detail = f"{type(error).__name__}: {error}"
        return self._failed("operator_failed", detail, retryable=True)

    def _failed(self, code: str, message: str, *, retryable: bool) -> wire.Complete:
        text = message.replace("\x00", "")[:_MESSAGE_LIMIT]
        return self._body("Failed", error_code=code, error_message=text, retryable=retryable)

    def _body(self, status: str, **fields: object) -> wire.Complete:
        return wire.Complete.model_validate(
            {**self._fence.model_dump(), "status": status, **fields}
        )

    # --- the report -------------------------------------------------------------------------

    def _report(self, body: wire.Complete) -> None:
        try:
            self.client.complete(body, self._token, self.stopping)
        except Refused as refusal:
            self._refused(body, refusal)
        except Unreachable as error:
            _log.warning("completion_given_up", task_id=str(body.task_id), error=str(error))

    def _refused(self, body: wire.Complete, refusal: Refused) -> None:
        _log.warning(
            "completion_refused",
            task_id=str(body.task_id),
            code=refusal.refusal,
            detail=refusal.detail,
        )
        # The fence held, but what was built cannot be committed: say so, instead of hanging on.
        if body.status == "Completed" and refusal.refusal not in ("lease_lost", "not_found"):
            retryable = refusal.refusal == "output_not_ready" or (
                # Who follows a cursor is told anew where to begin.
                refusal.refusal == "partition_overlap" and self.claimed.task.follows
            )
            self._report(self._failed(refusal.refusal, refusal.detail, retryable=retryable))

    # --- the heart --------------------------------------------------------------------------

    def _beat(self) -> None:
        deadline = time.monotonic() + self.claimed.task.timeout_seconds
        next_beat = time.monotonic() + self.claimed.task.heartbeat_seconds
        while self._fate is None:
            now = time.monotonic()
            if self._over.wait(max(0.0, min(deadline, next_beat, now + 0.5) - now)):
                return
            if self.stopping.is_set():
                self._interrupt("stopped")
            elif time.monotonic() >= deadline:
                self._interrupt("timeout")
            elif time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._heartbeat()

    def _heartbeat(self) -> float:
        """Extend the lease. Returns the seconds until the next beat: soon, if nobody heard it."""
        usual = self.claimed.task.heartbeat_seconds
        try:
            reply = self.client.heartbeat(self._fence, self._token, patience=max(1.0, usual))
        except Unreachable as error:
            # The lease may outlive the outage: go on, and let the fence decide.
            self._unheard += 1
            _log.warning("heartbeat_not_heard", task_id=str(self._fence.task_id), error=str(error))
            return min(usual, self.client.pause_after(self._unheard))
        except Refused as refusal:
            _log.warning("lease_lost", task_id=str(self._fence.task_id), code=refusal.refusal)
            self._interrupt("lost")
            return usual
        self._unheard = 0
        self._token = reply.capability_token or self._token
        self._hold = reply.hold
        if reply.cancel_requested:
            self._interrupt("canceled")
        return usual

    def _interrupt(self, fate: str) -> None:
        self._fate = fate
        self.runner.cancel(self.claimed.task.task_id)
