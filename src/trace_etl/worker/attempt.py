"""One attempt: run the operator, keep the lease alive meanwhile, report the result."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol
from uuid import UUID

import structlog

from trace_etl.api.body import ALREADY_CHECKED
from trace_etl.api.task import events as task_events
from trace_etl.api.task import lifecycle
from trace_etl.api.task.credentials import Credentials, CredentialsRequest
from trace_etl.http.clients.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.model.task import Isolation
from trace_etl.secret_store import SecretMissing, SecretStore
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.attempt_log import AttemptLog
from trace_etl.worker.attempt_watch import CHECK_SECONDS, AttemptWatch
from trace_etl.worker.completions import CompletionReport, Completions
from trace_etl.worker.hosts.failures import UNEXPECTED, Failure, describe_failure

_log = structlog.stdlib.get_logger()
_MAX_MESSAGE = 8000
_LOG_SECONDS = 5.0
_LOST_SECONDS = 0.7  # then another attempt may write: this one must not
_CANCEL_SECONDS = 10.0
Interruption = Literal["lost", "canceled", "timeout", "stopped"]


class Runner(Protocol):
    """Runs operators: in operator hosts, or in sandboxes."""

    def start(
        self, task: lifecycle.TaskPayload, link: DispatcherLink
    ) -> Future[lifecycle.TaskResult]:
        """Start the operator. Does not wait.

        The result raises TaskCanceled if the link is interrupted before the operator starts.
        """
        ...

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        """Stop an attempt within these seconds, even if other tasks must be stopped with it.

        Does nothing if the attempt does not run: `start` checks the link before the operator runs.
        """
        ...


@dataclass(frozen=True)
class AttemptServices:
    """What the attempts of a worker share: clients, and a few threads."""

    client: DispatcherClient
    runner: Runner
    completions: Completions
    watch: AttemptWatch
    secrets: SecretStore | None
    """The secrets that this worker may pass to operators. None: it runs untrusted code."""

    @classmethod
    def open(
        cls, client: DispatcherClient, runner: Runner, secrets: SecretStore | None = None
    ) -> "AttemptServices":
        return cls(client, runner, Completions(client), AttemptWatch(), secrets)

    def close(self) -> None:
        """End the threads. All attempts have ended."""
        self.watch.close()
        self.completions.close()


class Attempt:
    """A claimed task that runs. It has no thread of its own, because most of the time it waits.

    `AttemptWatch` calls `check`, the runner's result calls `_end`, and `Completions` calls `_answered`.
    """

    def __init__(
        self,
        claimed: lifecycle.Claimed,
        services: AttemptServices,
        stopping: threading.Event,
        keep_hidden: Callable[[], None],
        ended: Callable[[bool], None],
    ) -> None:
        """`stopping` is set when the worker shuts down: the attempt is interrupted and fails as retryable.

        `keep_hidden` keeps the task's wake-up hidden in the queue; it is called before every heartbeat.
        `ended` is called once, at the end: with whether the Dispatcher has decided on the attempt. It accepted
        or refused the result, or gave the lease to another attempt.
        """
        self.claimed = claimed
        self._services = services
        self._stopping = stopping
        self._keep_hidden = keep_hidden
        self._ended = ended
        self._token = claimed.capability_token
        self._fence: dict[str, Any] = {
            "task_id": claimed.task.task_id,
            "attempt": claimed.attempt,
            "lease_token": claimed.lease_token,
        }
        self._log = AttemptLog(self._send_output)
        self._log.secrets.hide(self._token)
        self._log.secrets.hide(str(claimed.lease_token))
        self._isolation: Isolation | None = None
        """How the code of this attempt is isolated. None: it is code of the platform, or has not started."""
        self._interruption: Interruption | None = None
        self._is_paused = False
        """Whether the job was paused at the last heartbeat."""
        self._began = now = time.monotonic()
        self._deadline = now + claimed.task.timeout_seconds
        self._next_heartbeat = now + claimed.task.heartbeat_seconds
        self._failed_heartbeats = 0
        """Heartbeats that failed since the last one that succeeded."""
        self._is_calling = False
        """Whether a heartbeat or output is being sent."""
        self._is_over = False

    def start(self) -> None:
        """Start the operator. Does not wait. Its end is reported later."""
        task = self.claimed.task
        _log.info(
            "attempt_started",
            task_id=str(task.task_id),
            attempt=task.attempt,
            job=task.job.name,
            operator=task.operator,
        )
        self._services.watch.add(self, min(self._deadline, self._next_heartbeat))
        start = partial(self._guard, self._start_operator)
        if task.secrets:  # a provider may take a while
            self._services.watch.do(start)
        else:
            start()

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a step. An error in this module ends the attempt, but neither the thread nor its slot."""
        try:
            step(*arguments)
        except Exception as error:
            self._services.watch.remove(self)
            _log.error("attempt_crashed", task_id=str(self.claimed.task.task_id), error=repr(error))
            self._ended(False)

    # --- the operator -----------------------------------------------------------------------

    def _start_operator(self) -> None:
        try:
            result = self._services.runner.start(self.claimed.task, self._make_link())
        except Exception as error:  # every failure is reported
            self._report_end(self._make_failure(error))
        else:
            result.add_done_callback(partial(self._guard, self._end))

    def _make_link(self) -> DispatcherLink:
        return DispatcherLink(
            self._emit,
            self._publish,
            self.claimed.lease_token,
            token=lambda: self._token,
            is_paused=lambda: self._is_paused,
            is_interrupted=lambda: self._interruption is not None,
            report_head=self._report_head,
            log=self._log.write,
            isolated=self._note_isolation,
            mask=self._log.secrets.mask,
            secrets=self._resolve_secrets(),
            mint=self._mint_credentials,
        )

    def _end(self, done: Future[lifecycle.TaskResult]) -> None:
        """Report how the operator ended. Does not wait: the results of other attempts arrive in this thread."""
        error = done.exception()
        if error is not None:
            self._report_end(self._make_failure(error))
            return
        reported = {name: value for name, value in done.result() if value}
        self._report_end(self._make_body("Completed", **reported))

    def _resolve_secrets(self) -> dict[str, str]:
        """Return the secrets of the job, and hide them in everything that is reported."""
        task = self.claimed.task
        if not task.secrets:
            return {}
        if self._services.secrets is None or task.org_id is None:
            raise SecretMissing(f"secrets: the runtime {task.runtime} passes none; remove them")
        values = self._services.secrets.resolve(task.org_id, task.secrets)
        for value in values.values():
            self._log.secrets.hide(value)
        return values

    def _emit(
        self, events: Sequence[lifecycle.Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Send events while the operator runs. Raises Refused when the lease is lost."""
        optional = {"invalidations": list(invalidations)} if invalidations else {}
        body = {**self._fence, "events": list(events), **optional}
        self._services.client.events(
            task_events.Events.model_validate(body), self._token, self._stopping
        )

    def _mint_credentials(self) -> Credentials:
        """Ask for credentials of S3 for the operator. Raises Refused when the lease is lost."""
        body = CredentialsRequest(**self._fence, generations=True)
        return self._services.client.credentials(body, self._token, self._stopping)

    def _report_head(self, head: task_events.ChainHead) -> None:
        """Report how far a follower is. Raises Refused when the lease is lost."""
        body = {**self._fence, "chain_head": head}
        self._services.client.events(
            task_events.Events.model_validate(body), self._token, self._stopping
        )

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
            **self._fence,
            dataset_uuid=dataset_uuid,
            batch_uri=batch_uri,
            record_count=record_count,
            batch_size_bytes=batch_size_bytes,
            content_type=content_type,
        )
        self._services.client.buffer_publish(body, self._token, self._stopping)

    def _make_failure(self, error: BaseException) -> lifecycle.Complete:
        if self._interruption == "canceled":
            return self._make_body("Canceled", error_message="canceled on request")
        if self._interruption == "timeout":
            seconds = self.claimed.task.timeout_seconds
            return self._make_failed(
                Failure(code="hard_timeout", message=f"ran longer than {seconds} s")
            )
        if self._interruption == "stopped":
            return self._make_failed(
                Failure(code="worker_stopped", message="the worker was shut down")
            )
        failure = describe_failure(error)
        output = self._log.secrets.mask(failure.output)
        self._log.write(output.encode("utf-8", "replace"))
        if failure.code == UNEXPECTED:
            _log.error("operator_failed", task_id=str(self.claimed.task.task_id), error=output)
        return self._make_failed(failure)

    def _make_failed(self, failure: Failure) -> lifecycle.Complete:
        text = self._log.secrets.mask(failure.message).replace("\x00", "")[:_MAX_MESSAGE]
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text
        optional: dict[str, object] = {"premature": True} if failure.premature else {}
        optional |= {"unreachable": True} if failure.unreachable else {}
        optional |= {"checks": failure.checks} if failure.checks else {}
        return self._make_body(
            "Failed",
            error_code=failure.code,
            error_message=text,
            retryable=failure.retryable,
            **optional,
        )

    def _make_body(self, status: str, **fields: object) -> lifecycle.Complete:
        isolation = {"isolation": self._isolation} if self._isolation is not None else {}
        body = {**self._fence, "status": status, **isolation, **fields}
        # The result of an operator was checked when it arrived, and failures hold no such values.
        return lifecycle.Complete.model_validate(body, context=ALREADY_CHECKED)

    # --- the report -------------------------------------------------------------------------

    def _report_end(self, body: lifecycle.Complete) -> None:
        """Report the end of the operator, after its output."""
        self._is_over = True
        self._services.watch.remove(self)
        if self._log.has_output:
            self._services.watch.do(partial(self._guard, self._report_with_output, body))
        else:
            self._report(body)

    def _report_with_output(self, body: lifecycle.Complete) -> None:
        try:
            self._log.flush(is_end=True)
        finally:
            self._report(body)

    def _report(self, body: lifecycle.Complete) -> None:
        # Report a finished result even without the lease: it counts until the next attempt starts.
        if self._interruption == "lost" and body.status != "Completed":
            _log.warning("attempt_abandoned", task_id=str(body.task_id), attempt=body.attempt)
            self._ended(True)
            return
        answered = partial(self._guard, self._answered, body)
        report = CompletionReport(body, self._token, self._stopping, answered)
        self._services.completions.add(report)

    def _answered(self, body: lifecycle.Complete, error: TraceError | None) -> None:
        """Take the answer to the report. A refused result is followed by the report of a failure."""
        if isinstance(error, Refused):
            _log.warning(
                "completion_refused",
                task_id=str(body.task_id),
                code=error.refusal,
                detail=error.detail,
            )
            if body.status == "Completed" and error.refusal not in ("lease_lost", "not_found"):
                self._report(self._make_failed(self._describe_refusal(error)))
                return
        elif error is not None:
            _log.warning("completion_given_up", task_id=str(body.task_id), error=str(error))
        _log.info(
            "attempt_ended",
            task_id=str(body.task_id),
            attempt=body.attempt,
            status=body.status,
            seconds=round(time.monotonic() - self._began, 3),
        )
        self._ended(error is None or isinstance(error, Refused))

    def _describe_refusal(self, refusal: Refused) -> Failure:
        """Return the failure of an attempt whose result was refused though it still has the lease."""
        # After `chain_mismatch` the next attempt may read from another endpoint.
        codes = ("output_not_ready", "dispatcher_failed", "chain_mismatch")
        retryable = refusal.refusal in codes or (
            # A task that follows a cursor gets its current position with the next attempt.
            refusal.refusal == "partition_overlap" and self.claimed.task.follows
        )
        return Failure(code=refusal.refusal, message=refusal.detail, retryable=retryable)

    # --- while the operator runs --------------------------------------------------------------

    def check(self, now: float) -> float:
        """Interrupt the attempt, or send a heartbeat or output in another thread, if it is time."""
        if self._interruption is not None:
            return math.inf
        if self._stopping.is_set():
            self._interrupt("stopped")
        elif now >= self._deadline:
            self._interrupt("timeout")
        elif not self._is_calling and (self._log.has_output or now >= self._next_heartbeat):
            self._is_calling = True
            self._services.watch.do(self._call)
        return self._deadline if self._is_calling else min(self._deadline, self._next_heartbeat)

    def _call(self) -> None:
        """Send output, and a heartbeat if it is time."""
        try:
            self._log.flush()
            if time.monotonic() >= self._next_heartbeat and not self._is_over:
                self._beat()
        finally:
            self._is_calling = False
            if self._next_heartbeat < time.monotonic() + CHECK_SECONDS:
                self._services.watch.wake()

    def _beat(self) -> None:
        self._next_heartbeat = math.inf
        pause = self.claimed.task.heartbeat_seconds
        try:
            self._keep_hidden()
            pause = self._send_heartbeat()
        finally:  # the sandbox may have started meanwhile: then the next heartbeat is due now
            self._next_heartbeat = min(self._next_heartbeat, time.monotonic() + pause)

    def _send_heartbeat(self) -> float:
        """Extend the lease. Returns the seconds until the next heartbeat: fewer after a failure."""
        interval = self.claimed.task.heartbeat_seconds
        try:
            body = lifecycle.Heartbeat(**self._fence, isolation=self._isolation)
            reply = self._services.client.heartbeat(body, self._token, timeout=max(1.0, interval))
        except Unreachable as error:
            # The lease may outlast the outage: continue, and let the Dispatcher's fence decide.
            self._failed_heartbeats += 1
            _log.warning(
                "heartbeat_failed", task_id=str(self.claimed.task.task_id), error=str(error)
            )
            return min(interval, self._services.client.pause_after(self._failed_heartbeats))
        except Refused as refusal:
            if self._is_over:  # this heartbeat came after the completion
                return interval
            _log.warning("lease_lost", task_id=str(self.claimed.task.task_id), code=refusal.refusal)
            self._interrupt("lost")
            return interval
        self._failed_heartbeats = 0
        self._token = reply.capability_token or self._token
        self._log.secrets.hide(self._token)
        self._is_paused = reply.hold
        if reply.cancel_requested:
            self._interrupt("canceled")
        return interval

    def _note_isolation(self, level: Isolation) -> None:
        """Report at once how the code is isolated: the attempt may end without a report."""
        self._isolation = level
        self._next_heartbeat = 0.0
        self._services.watch.wake()

    def _send_output(self, position: int, text: str) -> bool:
        """Send a part of the output. False: the Dispatcher does not answer, so it is sent later."""
        body = lifecycle.LogOutput(**self._fence, position=position, text=text)
        timeout = min(_LOG_SECONDS, max(1.0, self.claimed.task.heartbeat_seconds))
        try:
            self._services.client.log(body, self._token, timeout)
        except Unreachable as error:
            _log.warning(
                "output_not_sent", task_id=str(self.claimed.task.task_id), error=str(error)
            )
            return False
        except Refused as refusal:
            _log.warning(
                "output_refused", task_id=str(self.claimed.task.task_id), code=refusal.refusal
            )
        return True

    def _interrupt(self, interruption: Interruption) -> None:
        self._interruption = interruption  # first: the runner may be about to start the operator
        within = _LOST_SECONDS if interruption == "lost" else _CANCEL_SECONDS
        task = self.claimed.task
        self._services.watch.do(
            lambda: self._services.runner.cancel(task.task_id, task.attempt, within)
        )
