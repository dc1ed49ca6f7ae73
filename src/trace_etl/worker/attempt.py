"""One attempt: run the operator, keep the lease alive meanwhile, report the result."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

import structlog

from trace_etl.api.task import events as task_events
from trace_etl.api.task import lifecycle
from trace_etl.api.task.credentials import Credentials, CredentialsRequest
from trace_etl.http.clients.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.task import Isolation
from trace_etl.secret_store import SecretMissing, SecretStore
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.attempt_log import AttemptLog
from trace_etl.worker.hosts.failures import UNEXPECTED, Failure, describe_failure

_log = structlog.stdlib.get_logger()
_MAX_MESSAGE = 8000
_CHECK_STOP_SECONDS = 0.5
_LOG_SECONDS = 5.0
_LOST_SECONDS = 0.7  # then another attempt may write: this one must not
_CANCEL_SECONDS = 10.0
Interruption = Literal["lost", "canceled", "timeout", "stopped"]


class Runner(Protocol):
    """Runs operators: in operator hosts, or in sandboxes."""

    def run(self, task: lifecycle.TaskPayload, link: DispatcherLink) -> lifecycle.TaskResult:
        """Run the operator. Raises TaskCanceled if the link is interrupted before it starts."""
        ...

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        """Stop an attempt within these seconds, even if other tasks must be stopped with it.

        Does nothing if the attempt does not run: `run` checks the link before it starts.
        """
        ...


class CompletionReporter(Protocol):
    """Reports the end of an attempt: the Dispatcher's client, or `Completions`."""

    def complete(self, body: lifecycle.Complete, token: str, stop: threading.Event) -> object: ...


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
    completions: CompletionReporter
    secrets: SecretStore | None = None
    """The secrets that this worker may pass to operators. None: it runs untrusted code."""

    _ended: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Event = field(default_factory=threading.Event)
    """Set when the attempt has ended, or its sandbox has started: wakes the thread of heartbeats."""
    _isolation: Isolation | None = None
    """How the code of this attempt is isolated. None: it is code of the platform, or has not started."""
    _interruption: Interruption | None = None
    _is_paused: bool = False
    """Whether the job was paused at the last heartbeat."""
    _failed_heartbeats: int = 0
    """Heartbeats that failed since the last one that succeeded."""

    def __post_init__(self) -> None:
        self._token = self.claimed.capability_token
        self._log = AttemptLog(self._send_output)
        self._log.secrets.hide(self._token)
        self._log.secrets.hide(str(self.claimed.lease_token))
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
        self._changed.set()
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
            secrets = self._resolve_secrets()
            link = DispatcherLink(
                self._emit,
                self._publish,
                self._fence.lease_token,
                token=lambda: self._token,
                is_paused=lambda: self._is_paused,
                is_interrupted=lambda: self._interruption is not None,
                report_head=self._report_head,
                log=self._log.write,
                isolated=self._note_isolation,
                mask=self._log.secrets.mask,
                secrets=secrets,
                mint=self._mint_credentials,
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

    def _resolve_secrets(self) -> dict[str, str]:
        """Return the secrets of the job, and hide them in everything that is reported."""
        task = self.claimed.task
        if not task.secrets:
            return {}
        if self.secrets is None or task.org_id is None:
            raise SecretMissing(f"secrets: the runtime {task.runtime} passes none; remove them")
        values = self.secrets.resolve(task.org_id, task.secrets)
        for value in values.values():
            self._log.secrets.hide(value)
        return values

    def _emit(
        self, events: Sequence[lifecycle.Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Send events while the operator runs. Raises Refused when the lease is lost."""
        optional = {"invalidations": list(invalidations)} if invalidations else {}
        body = {**self._fence.model_dump(), "events": list(events), **optional}
        self.client.events(task_events.Events.model_validate(body), self._token, self.stopping)

    def _mint_credentials(self) -> Credentials:
        """Ask for credentials of S3 for the operator. Raises Refused when the lease is lost."""
        body = CredentialsRequest(**self._fence.model_dump(), generations=True)
        return self.client.credentials(body, self._token, self.stopping)

    def _report_head(self, head: task_events.ChainHead) -> None:
        """Report how far a follower is. Raises Refused when the lease is lost."""
        body = {**self._fence.model_dump(), "chain_head": head}
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
            return self._make_failed(
                Failure(code="hard_timeout", message=f"ran longer than {seconds} s")
            )
        if self._interruption == "stopped":
            return self._make_failed(
                Failure(code="worker_stopped", message="the worker was shut down")
            )
        failure = describe_failure(error)
        output = self._log.secrets.mask(failure.output)
        self._log.write(output.encode())
        if failure.code == UNEXPECTED:
            _log.error("operator_failed", task_id=str(self._fence.task_id), error=output)
        return self._make_failed(failure)

    def _make_failed(self, failure: Failure) -> lifecycle.Complete:
        text = self._log.secrets.mask(failure.message).replace("\x00", "")[:_MAX_MESSAGE]
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
        return lifecycle.Complete.model_validate(
            {**self._fence.model_dump(), "status": status, **isolation, **fields}
        )

    # --- the report -------------------------------------------------------------------------

    def _report(self, body: lifecycle.Complete) -> bool:
        """Report the result. Returns whether the Dispatcher answered."""
        try:
            self.completions.complete(body, self._token, self.stopping)
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
        failure = Failure(code=refusal.refusal, message=refusal.detail, retryable=retryable)
        return self._report(self._make_failed(failure))

    # --- the heartbeat ----------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        deadline = time.monotonic() + self.claimed.task.timeout_seconds
        next_heartbeat = time.monotonic() + self.claimed.task.heartbeat_seconds
        while self._interruption is None:
            now = time.monotonic()
            until = min(deadline, next_heartbeat, now + _CHECK_STOP_SECONDS)
            if self._changed.wait(max(0.0, until - now)):
                self._changed.clear()
                next_heartbeat = now  # the heartbeat reports the isolation at once
            if self._ended.is_set():
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
            body = lifecycle.Heartbeat(**self._fence.model_dump(), isolation=self._isolation)
            reply = self.client.heartbeat(body, self._token, timeout=max(1.0, interval))
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
        self._log.secrets.hide(self._token)
        self._is_paused = reply.hold
        if reply.cancel_requested:
            self._interrupt("canceled")
        return interval

    def _note_isolation(self, level: Isolation) -> None:
        """Report at once how the code is isolated: the attempt may end without a report."""
        self._isolation = level
        self._changed.set()

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
        self._interruption = interruption  # first: the runner may be about to start the operator
        within = _LOST_SECONDS if interruption == "lost" else _CANCEL_SECONDS
        task = self.claimed.task
        self.runner.cancel(task.task_id, task.attempt, within)
