"""One attempt: run the operator, keep the lease alive meanwhile, report the result."""

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

import structlog

from trace_etl.api.task import events as task_events
from trace_etl.api.task import lifecycle
from trace_etl.api.task.checks import CheckResult
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.spark.errors import CheckFailed
from trace_etl.spark.link import DispatcherLink
from trace_etl.worker.attempt_log import AttemptLog

_log = structlog.stdlib.get_logger()
_MAX_MESSAGE = 8000
_CHECK_STOP_SECONDS = 0.5
_LOG_SECONDS = 5.0
Interruption = Literal["lost", "canceled", "timeout", "stopped"]


class Runner(Protocol):
    """Runs operators: in Spark here, in a sandboxed child process elsewhere."""

    def run(
        self, task: lifecycle.TaskPayload, link: DispatcherLink | None = None
    ) -> lifecycle.TaskResult: ...

    def cancel(self, task_id: UUID) -> None: ...

    def cool(self) -> None:
        """Free what is kept warm for the next task. Called when the worker is idle for long."""
        ...


@dataclass
class Attempt:
    """A claimed task. Runs in the thread of a slot, with a second thread for its heartbeat."""

    claimed: lifecycle.Claimed
    client: DispatcherClient
    runner: Runner
    stopping: threading.Event
    """Set when the worker shuts down: the attempt is interrupted and fails as retryable."""
    keep_hidden: Callable[[], None]
    """Keeps the task's wake-up hidden in the queue. Called on every heartbeat."""

    _ended: threading.Event = field(default_factory=threading.Event)
    _interruption: Interruption | None = None
    _is_paused: bool = False
    """Whether the job was paused at the last heartbeat."""
    _failed_heartbeats: int = 0
    """Heartbeats that failed since the last one that succeeded."""

    def __post_init__(self) -> None:
        self._token = self.claimed.capability_token
        self._log = AttemptLog(self._send_output)
        self._log.hide(self._token)
        self._log.hide(str(self.claimed.lease_token))
        self._fence = lifecycle.Fenced(
            task_id=self.claimed.task.task_id,
            attempt=self.claimed.attempt,
            lease_token=self.claimed.lease_token,
        )

    def run(self) -> bool:
        """Run the operator and report its result.

        Returns whether the Dispatcher has decided on the attempt: it accepted or refused the
        result, or gave the lease to another attempt.
        """
        task = self.claimed.task
        log = _log.bind(task_id=str(task.task_id), attempt=task.attempt, job=task.job.name)
        log.info("attempt_started", operator=task.operator)
        began = time.monotonic()
        heartbeat = threading.Thread(
            target=self._send_heartbeats, name=f"heartbeat-{task.task_id}", daemon=True
        )
        heartbeat.start()
        body = self._run_operator()
        self._ended.set()
        heartbeat.join()
        self._log.flush(is_end=True)
        # Report a finished result even without the lease: it counts until the next attempt starts.
        if self._interruption == "lost" and body.status != "Completed":
            log.warning("attempt_abandoned")
            return True
        is_decided = self._report(body)
        log.info("attempt_ended", status=body.status, seconds=round(time.monotonic() - began, 3))
        return is_decided

    # --- the operator -----------------------------------------------------------------------

    def _run_operator(self) -> lifecycle.Complete:
        try:
            link = DispatcherLink(
                self._fence.lease_token,
                self._emit,
                self._publish,
                token=lambda: self._token,
                is_paused=lambda: self._is_paused,
                log=self._log.write,
                mask=self._log.mask,
            )
            result = self.runner.run(self.claimed.task, link)
        except Exception as error:  # an operator may raise anything: every failure is reported
            return self._make_failure(error)
        return self._make_body(
            "Completed",
            outputs=result.outputs,
            datasets_published=result.datasets_published,
            events=result.events,
            invalidations=result.invalidations,
            mapped_partitions=result.mapped_partitions,
            checks=result.checks,
        )

    def _emit(
        self, events: Sequence[lifecycle.Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Send events while the operator runs. Raises Refused when the lease is lost."""
        optional = {"invalidations": list(invalidations)} if invalidations else {}
        body = {**self._fence.model_dump(), "events": list(events), **optional}
        self.client.events(task_events.Events.model_validate(body), self._token, self.stopping)

    def _publish(
        self,
        dataset_uuid: UUID,
        batch_uri: str,
        *,
        record_count: int,
        batch_size_bytes: int,
        content_type: str,
    ) -> None:
        """Publish a batch of a buffered dataset. Raises Refused when the lease is lost."""
        body = lifecycle.BufferPublish(
            **self._fence.model_dump(),
            dataset_uuid=dataset_uuid,
            batch_uri=batch_uri,
            record_count=record_count,
            batch_size_bytes=batch_size_bytes,
            content_type=content_type,
        )
        self.client.buffer_publish(body, self._token, self.stopping)

    def _make_failure(self, error: Exception) -> lifecycle.Complete:
        if self._interruption == "canceled":
            return self._make_body("Canceled", error_message="canceled on request")
        if self._interruption == "timeout":
            seconds = self.claimed.task.timeout_seconds
            message = f"ran longer than {seconds} s"
            return self._make_failed("hard_timeout", message, retryable=True)
        if self._interruption == "stopped":
            return self._make_failed("worker_stopped", "the worker was shut down", retryable=True)
        if isinstance(error, Refused):
            is_retryable = error.refusal == "dispatcher_failed"
            return self._make_failed(error.refusal, error.detail, retryable=is_retryable)
        if isinstance(error, TraceError):
            self._log.write(f"{error.code}: {error.detail}\n".encode())
        if isinstance(error, CheckFailed):
            return self._make_failed(
                error.code, error.detail, retryable=error.retryable, checks=error.results
            )
        if isinstance(error, TraceError):
            return self._make_failed(
                error.code,
                error.detail,
                retryable=error.retryable,
                premature=error.is_premature,
                unreachable=error.unreachable,
            )
        _log.exception("operator_failed", task_id=str(self._fence.task_id))
        self._log.write("".join(traceback.format_exception(error)).encode())
        detail = f"{type(error).__name__}: {error}"
        return self._make_failed("operator_failed", detail, retryable=True)

    def _make_failed(
        self,
        code: str,
        message: str,
        *,
        retryable: bool,
        premature: bool = False,
        unreachable: bool = False,
        checks: Sequence[CheckResult] = (),
    ) -> lifecycle.Complete:
        text = self._log.mask(message).replace("\x00", "")[:_MAX_MESSAGE]
        optional: dict[str, object] = {"premature": True} if premature else {}
        optional |= {"unreachable": True} if unreachable else {}
        optional |= {"checks": list(checks)} if checks else {}
        return self._make_body(
            "Failed", error_code=code, error_message=text, retryable=retryable, **optional
        )

    def _make_body(self, status: str, **fields: object) -> lifecycle.Complete:
        return lifecycle.Complete.model_validate(
            {**self._fence.model_dump(), "status": status, **fields}
        )

    # --- the report -------------------------------------------------------------------------

    def _report(self, body: lifecycle.Complete) -> bool:
        """Report the result. Returns whether the Dispatcher answered."""
        try:
            self.client.complete(body, self._token, self.stopping)
        except Refused as refusal:
            return self._report_refusal(body, refusal)
        except Unreachable as error:
            _log.warning("completion_given_up", task_id=str(body.task_id), error=str(error))
            return False
        return True

    def _report_refusal(self, body: lifecycle.Complete, refusal: Refused) -> bool:
        """Fail the attempt if its result was refused though it still has the lease."""
        _log.warning(
            "completion_refused",
            task_id=str(body.task_id),
            code=refusal.refusal,
            detail=refusal.detail,
        )
        if body.status != "Completed" or refusal.refusal in ("lease_lost", "not_found"):
            return True
        # After `chain_mismatch` the next attempt may read from another endpoint.
        codes = ("output_not_ready", "dispatcher_failed", "chain_mismatch")
        retryable = refusal.refusal in codes or (
            # A task that follows a cursor gets its current position with the next attempt.
            refusal.refusal == "partition_overlap" and self.claimed.task.follows
        )
        return self._report(self._make_failed(refusal.refusal, refusal.detail, retryable=retryable))

    # --- the heartbeat ----------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        deadline = time.monotonic() + self.claimed.task.timeout_seconds
        next_heartbeat = time.monotonic() + self.claimed.task.heartbeat_seconds
        while self._interruption is None:
            now = time.monotonic()
            until = min(deadline, next_heartbeat, now + _CHECK_STOP_SECONDS)
            if self._ended.wait(max(0.0, until - now)):
                return
            self._log.flush()
            if self.stopping.is_set():
                self._interrupt("stopped")
            elif time.monotonic() >= deadline:
                self._interrupt("timeout")
            elif time.monotonic() >= next_heartbeat:
                self.keep_hidden()
                next_heartbeat = time.monotonic() + self._send_heartbeat()

    def _send_heartbeat(self) -> float:
        """Extend the lease. Returns the seconds until the next heartbeat: fewer after a failure."""
        interval = self.claimed.task.heartbeat_seconds
        try:
            reply = self.client.heartbeat(self._fence, self._token, timeout=max(1.0, interval))
        except Unreachable as error:
            # The lease may outlast the outage: continue, and let the Dispatcher's fence decide.
            self._failed_heartbeats += 1
            _log.warning("heartbeat_failed", task_id=str(self._fence.task_id), error=str(error))
            return min(interval, self.client.pause_after(self._failed_heartbeats))
        except Refused as refusal:
            _log.warning("lease_lost", task_id=str(self._fence.task_id), code=refusal.refusal)
            self._interrupt("lost")
            return interval
        self._failed_heartbeats = 0
        self._token = reply.capability_token or self._token
        self._log.hide(self._token)
        self._is_paused = reply.hold
        if reply.cancel_requested:
            self._interrupt("canceled")
        return interval

    def _send_output(self, position: int, text: str) -> bool:
        """Send a part of the output. False: the Dispatcher does not answer, so it is sent later."""
        body = lifecycle.LogOutput(**self._fence.model_dump(), position=position, text=text)
        timeout = min(_LOG_SECONDS, max(1.0, self.claimed.task.heartbeat_seconds))
        try:
            self.client.log(body, self._token, timeout)
        except Unreachable as error:
            _log.warning("output_not_sent", task_id=str(self._fence.task_id), error=str(error))
            return False
        except Refused as refusal:
            _log.warning("output_refused", task_id=str(self._fence.task_id), code=refusal.refusal)
        return True

    def _interrupt(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self.runner.cancel(self.claimed.task.task_id)
