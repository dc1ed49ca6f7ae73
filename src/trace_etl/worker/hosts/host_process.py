"""One operator host, as its worker sees it: start it, send tasks, serve their calls, end it."""

import itertools
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import structlog
from pydantic import ValidationError

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
_CHECK_RUNS_SECONDS = 0.5
_STOP_SECONDS = 6.0
_METRICS_SECONDS = 2.0
_ANSWERS = ("ready", "warmed", "metrics")
"""Messages that belong to no task."""
Message = dict[str, Any]
_Inbox = queue.SimpleQueue[Message | None]


class HostLost(TraceError, code="host_lost", retryable=True):
    """The operator host ended while a task ran in it."""


@dataclass(eq=False)
class _Run:
    """A task that runs in the host."""

    number: int
    task_id: UUID
    attempt: int
    link: DispatcherLink
    is_paused: bool
    """What the host knows."""
    credentials: TaskCredentials | None = None
    result: Future[TaskResult] = field(default_factory=Future[TaskResult])


class HostProcess:
    """A running host. Any number of tasks may run in it; none of them needs a thread here."""

    def __init__(
        self, command: HostCommand, threads: Executor, starter: HostStarter | None = None
    ) -> None:
        """Start the host, by the starter if there is one. Raises HostLost.

        `threads` serve the calls of operators.
        """
        ours, theirs = socket.socketpair()
        self._command = command
        self._threads = threads
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
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()
        self._scraping = threading.Lock()
        self._ended = threading.Event()
        self._answers = {kind: _Inbox() for kind in _ANSWERS}
        threading.Thread(target=self._read, name=f"host-{self.pid}", daemon=True).start()
        threading.Thread(target=self._copy_output, name="host-output", daemon=True).start()
        threading.Thread(target=self._check_runs, name="host-checks", daemon=True).start()
        try:
            self._await("ready")
        except HostLost:
            self.kill()
            raise

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

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

    def start(self, task: TaskPayload, link: DispatcherLink) -> Future[TaskResult]:
        """Start a task. Its result raises FailedInHost, HostLost, TaskCanceled.

        Asks for credentials of S3 first, if each task has its own.
        """
        for value in link.secrets.values():
            self._mask.hide(value)
        run = _Run(next(self._numbers), task.task_id, task.attempt, link, link.is_paused())
        with self._lock:
            self._runs[run.number] = run
        try:
            run.credentials = self._grant(run)
            link.check()
            self._send(
                "run",
                run=run.number,
                task=orjson.Fragment(task.model_dump_json()),
                secrets=link.secrets,
                paused=run.is_paused,
                credentials=str(run.credentials.file) if run.credentials else None,
            )
        except Exception as error:  # the result has it
            self._end(run.number, error)
        return run.result

    def cancel(self, task_id: UUID, attempt: int, within: float) -> None:
        """Cancel an attempt. If it does not end within these seconds, the whole host is killed."""
        for run in self._list_runs():
            if (run.task_id, run.attempt) != (task_id, attempt):
                continue
            with suppress(HostLost):
                self._send("cancel", run=run.number)
            timer = threading.Timer(within, self._kill_if_running, [run.number])
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
        try:
            while (message := self._frames.receive()) is not None:
                self._sort(message)
        except (
            Exception
        ) as error:  # whatever the host has sent: without this thread its tasks never end
            _log.error("host_not_understood", pid=self.pid, error=repr(error))
        self._ended.set()
        # A dead host may leave its JVM: no process of it may write after its tasks have failed.
        self.kill()
        for inbox in self._answers.values():
            inbox.put(None)
        for run in self._list_runs():
            self._end(run.number, HostLost(self._explain_end()))

    def _sort(self, message: Message) -> None:
        inbox = self._answers.get(message["kind"])
        if inbox is not None:
            inbox.put(message)
        elif run := self._runs.get(message["run"]):
            self._handle(run, message)

    def _handle(self, run: _Run, message: Message) -> None:
        """Handle a message of a task. Does not wait: the messages of all tasks arrive here."""
        if message["kind"] == "done":
            self._end(run.number, _read_result(message))
        elif message["kind"] == "log":
            run.link.log(message["text"].encode())
        else:
            self._threads.submit(self._serve, run, message)

    def _serve(self, run: _Run, message: Message) -> None:
        """Make the call to the Dispatcher that an operator asks for."""
        failure: Failure | None = None
        try:
            _call_dispatcher(run.link, message["name"], message["arguments"])
        except Exception as error:  # the operator waits for an answer
            failure = describe_failure(error)
        answer = None if failure is None else orjson.Fragment(failure.model_dump_json())
        with suppress(HostLost):  # it ends all tasks
            self._send("reply", run=run.number, call=message["call"], failure=answer)

    def _end(self, number: int, outcome: TaskResult | Exception) -> None:
        with self._lock:
            run = self._runs.pop(number, None)
        if run is None:
            return
        if run.credentials is not None:
            run.credentials.remove()
        if isinstance(outcome, Exception):
            run.result.set_exception(outcome)
        else:
            run.result.set_result(outcome)

    # --- tasks that run -----------------------------------------------------------------------

    def _grant(self, run: _Run) -> TaskCredentials | None:
        """Write a file with credentials of S3 for a task, if the host has none for all tasks."""
        if not self._command.has_own_credentials or run.link.mint is None:
            return None
        file = self._command.directory / f"s3-{run.number}"
        credentials = TaskCredentials(file, run.link.mint)
        credentials.write()
        return credentials

    def _list_runs(self) -> list[_Run]:
        with self._lock:
            return list(self._runs.values())

    def _check_runs(self) -> None:
        """Pass on pauses, and renew credentials, until the host ends."""
        while not self._ended.wait(_CHECK_RUNS_SECONDS):
            for run in self._list_runs():
                if run.is_paused != run.link.is_paused():
                    run.is_paused = not run.is_paused
                    with suppress(HostLost):
                        self._send("paused", run=run.number, value=run.is_paused)
                if run.credentials is not None:
                    run.credentials.renew()

    def _kill_if_running(self, number: int) -> None:
        if number in self._runs:
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


def _read_result(message: Message) -> TaskResult | Exception:
    try:
        if "failure" in message:
            return FailedInHost(Failure.model_validate(message["failure"]))
        return TaskResult.model_validate(message["result"])
    except ValidationError as error:
        return error
