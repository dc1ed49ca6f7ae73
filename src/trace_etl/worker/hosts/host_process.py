"""One operator host, as its worker sees it: start it, send tasks, serve their calls, end it."""

import itertools
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import orjson
import structlog

from trace_etl.api.task.events import ChainHead, Event
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskPayload
from trace_etl.model.errors import TraceError
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.hosts.failures import FailedInHost, Failure, describe_failure
from trace_etl.worker.hosts.frames import Frames
from trace_etl.worker.hosts.host_start import HostCommand, HostRefused, HostStarter, start_host
from trace_etl.worker.hosts.task_credentials import TaskCredentials
from trace_etl.worker.masking import SecretMask

_log = structlog.stdlib.get_logger()
_CHECK_PAUSED_SECONDS = 0.5
_STOP_SECONDS = 6.0
_METRICS_SECONDS = 2.0
_ANSWERS = ("ready", "warmed", "metrics")
"""Messages that belong to no task."""
Message = dict[str, Any]
_Inbox = queue.SimpleQueue[Message | None]


class HostLost(TraceError, code="host_lost", retryable=True):
    """The operator host ended while a task ran in it."""


class HostProcess:
    """A running host. Any number of threads may run tasks in it."""

    def __init__(self, command: HostCommand, starter: HostStarter | None = None) -> None:
        """Start the host, by the starter if there is one. Raises HostLost."""
        ours, theirs = socket.socketpair()
        self._command = command
        try:
            with theirs:
                start = starter.start if starter else start_host
                self._process = start(command, theirs)
        except (HostRefused, OSError) as error:
            ours.close()
            raise HostLost(f"the operator host did not start: {error}") from error
        self.pid = self._process.pid
        self._frames = Frames(ours)
        self._mask = SecretMask()
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, _Inbox] = {}
        self._running: dict[int, tuple[UUID, int]] = {}
        """The task and the attempt of each run."""
        self._lock = threading.Lock()
        self._scraping = threading.Lock()
        self._ended = threading.Event()
        self._answers = {kind: _Inbox() for kind in _ANSWERS}
        threading.Thread(target=self._read, name=f"host-{self.pid}", daemon=True).start()
        threading.Thread(target=self._copy_output, name="host-output", daemon=True).start()
        try:
            self._await("ready")
        except HostLost:
            self.kill()
            raise

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_idle(self) -> bool:
        return not self._running

    def warm(self) -> None:
        """Start Spark now, not with the first task. Raises FailedInHost, HostLost."""
        self._send("warm")
        answer = self._await("warmed")
        if answer["failure"] is not None:
            raise FailedInHost(Failure.model_validate(answer["failure"]))

    def read_metrics(self) -> str:
        """Return the metrics of the host in Prometheus' text format. Raises HostLost."""
        deadline = time.monotonic() + _METRICS_SECONDS
        with self._scraping:
            number = next(self._numbers)
            self._send("metrics", number=number)
            while True:
                left = max(0.0, deadline - time.monotonic())
                answer = self._await("metrics", left)
                if answer["number"] == number:  # else it is the late answer to an earlier request
                    return answer["text"]

    def run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult:
        """Run a task. Raises FailedInHost, HostLost, TaskCanceled."""
        for value in link.secrets.values():
            self._mask.hide(value)
        with self._register(task) as (number, inbox), self._grant(number, link) as credentials:
            link.check()
            paused = link.is_paused()
            body: dict[str, object] = {
                "task": orjson.Fragment(task.model_dump_json()),
                "secrets": link.secrets,
                "paused": paused,
                "credentials": str(credentials.file) if credentials else None,
            }
            self._send("run", run=number, **body)
            while True:
                if credentials is not None:
                    credentials.renew()
                try:
                    message = inbox.get(timeout=_CHECK_PAUSED_SECONDS)
                except queue.Empty:
                    if paused != link.is_paused():
                        paused = not paused
                        self._send("paused", run=number, value=paused)
                    continue
                if message is None:
                    raise HostLost(self._explain_end())
                if message["kind"] == "done":
                    return _read_result(message)
                self._serve(number, link, message)

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        """Cancel an attempt. If it does not end within these seconds, the whole host is killed."""
        canceled = (task_id, attempt)
        with self._lock:
            numbers = [number for number, found in self._running.items() if found == canceled]
        for number in numbers:
            with suppress(HostLost):
                self._send("cancel", run=number)
            timer = threading.Timer(within, self._kill_if_running, [number])
            timer.daemon = True
            timer.start()

    def stop(self) -> None:
        """Let the host stop Spark and end; kill it after a while."""
        with suppress(HostLost):
            self._send("stop")
        if not self._ended.wait(_STOP_SECONDS):
            _log.warning("host_killed", reason="it did not stop", pid=self.pid)
        self.kill()

    def kill(self) -> None:
        """Kill the host with all its processes."""
        self._process.kill()
        self._frames.close()
        self._process.wait()

    # --- messages -----------------------------------------------------------------------------

    def _send(self, kind: str, **fields: object) -> None:
        try:
            self._frames.send(kind, **fields)
        except OSError as error:
            raise HostLost(self._explain_end()) from error

    def _await(self, kind: str, timeout: float | None = None) -> Message:
        """Return the next message of a kind that belongs to no task. Raises HostLost."""
        try:
            message = self._answers[kind].get(timeout=timeout)
        except queue.Empty:
            raise HostLost("the operator host does not answer") from None
        if message is None:
            raise HostLost(self._explain_end())
        return message

    def _read(self) -> None:
        while (message := self._frames.receive()) is not None:
            by_kind = self._answers.get(message["kind"])
            inbox = self._inboxes.get(message["run"]) if by_kind is None else by_kind
            if inbox is not None:
                inbox.put(message)
        self._ended.set()
        with self._lock:
            waiting = [*self._answers.values(), *self._inboxes.values()]
        # A dead host may leave its JVM: no process of it may write after its tasks have failed.
        self.kill()
        for inbox in waiting:
            inbox.put(None)

    def _serve(self, number: int, link: DispatcherLink, message: Message) -> None:
        """Do what the operator asks for: keep output, or call the Dispatcher."""
        if message["kind"] == "log":
            link.log(message["text"].encode())
            return
        failure: Failure | None = None
        try:
            _call_dispatcher(link, message["name"], message["arguments"])
        except TraceError as error:
            failure = describe_failure(error)
        answer = None if failure is None else orjson.Fragment(failure.model_dump_json())
        self._send("reply", run=number, call=message["call"], failure=answer)

    @contextmanager
    def _grant(self, number: int, link: DispatcherLink) -> Generator[TaskCredentials | None]:
        """Keep a file with credentials of S3 for a task, if the host has none for all tasks."""
        if not self._command.has_own_credentials or link.mint is None:
            yield None
            return
        credentials = TaskCredentials(self._command.directory / f"s3-{number}", link.mint)
        credentials.write()
        try:
            yield credentials
        finally:
            credentials.remove()

    @contextmanager
    def _register(self, task: TaskPayload) -> Generator[tuple[int, _Inbox]]:
        number, inbox = next(self._numbers), _Inbox()
        with self._lock:
            self._inboxes[number] = inbox
            self._running[number] = (task.task_id, task.attempt)
        try:
            if self._ended.is_set():
                raise HostLost(self._explain_end())
            yield number, inbox
        finally:
            with self._lock:
                del self._inboxes[number], self._running[number]

    def _kill_if_running(self, number: int) -> None:
        if number in self._running:
            _log.warning("host_killed", reason="a canceled task did not stop", pid=self.pid)
            self.kill()

    def _explain_end(self) -> str:
        with suppress(TimeoutError):
            code = self._process.wait(1.0)
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
            return f"the operator host {how}"
        return "the operator host closed its connection"

    def _copy_output(self) -> None:
        """Write the output of the host to the log of the worker, without secrets."""
        assert self._process.output is not None
        with self._process.output as output:
            for line in output:
                sys.stderr.write(self._mask.mask(line.decode("utf-8", "replace")))
                sys.stderr.flush()


def _call_dispatcher(link: DispatcherLink, name: str, arguments: Message) -> None:
    if name == "emit":
        events: Sequence[Event] = [Event.model_validate(event) for event in arguments["events"]]
        link.emit(events, arguments["invalidations"])
        return
    if name == "report_head":
        link.report_head(ChainHead.model_validate(arguments["head"]))
        return
    assert name == "publish" and link.publish is not None
    dataset_uuid = UUID(arguments["dataset_uuid"])
    link.publish(dataset_uuid, arguments["batch_uri"], **arguments["details"])


def _read_result(message: Message) -> TaskResult:
    if "failure" in message:
        raise FailedInHost(Failure.model_validate(message["failure"]))
    return TaskResult.model_validate(message["result"])
