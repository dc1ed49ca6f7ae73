"""`python -m trace_etl.worker.hosts.host`: the process that runs operators on Spark.

A worker starts it and passes it tasks over a socket. It holds what operators need: the session of
Spark, the object store, Postgres data. It has no worker token, and no lease or token of a task: the
worker makes the calls to the Dispatcher that an operator asks for.
"""

import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from prometheus_client import REGISTRY, generate_latest
from pydantic import BaseModel

from trace_etl import logs
from trace_etl.api.body import ALREADY_CHECKED
from trace_etl.api.task.events import ChainHead, Event
from trace_etl.api.task.payload import TaskPayload
from trace_etl.data import migrations
from trace_etl.model.errors import TraceError
from trace_etl.spark import output
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.hosts.failures import FailedInHost, Failure, describe_failure
from trace_etl.worker.hosts.frames import Frames
from trace_etl.worker.settings import HostSettings

if TYPE_CHECKING:
    from trace_etl.spark.runner import SparkRunner

Message = dict[str, Any]


@dataclass
class HostedRun:
    """A task that runs here, as its operator sees the worker."""

    number: int
    frames: Frames
    calls: Iterator[int] = field(default_factory=itertools.count)
    replies: dict[int, SimpleQueue[Message]] = field(
        default_factory=dict[int, SimpleQueue[Message]]
    )
    is_paused: bool = False

    def make_link(self, secrets: Mapping[str, str], credentials: str | None) -> DispatcherLink:
        """Return the calls that the operator may make."""
        return DispatcherLink(
            self._emit,
            self._publish,
            is_paused=lambda: self.is_paused,
            report_head=self._report_head,
            log=self._log,
            secrets=secrets,
            credentials_file=Path(credentials) if credentials else None,
        )

    def _emit(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        bodies = [event.model_dump(exclude_unset=True) for event in events]
        self._call("emit", events=bodies, invalidations=[dict(item) for item in invalidations])

    def _report_head(self, head: ChainHead) -> None:
        self._call("report_head", head=head.model_dump())

    def _publish(self, dataset_uuid: UUID, batch_uri: str, **details: object) -> None:
        self._call("publish", dataset_uuid=dataset_uuid, batch_uri=batch_uri, details=details)

    def _log(self, content: bytes) -> None:
        self.frames.send("log", run=self.number, text=content.decode("utf-8", "replace"))

    def _call(self, name: str, **arguments: object) -> None:
        """Let the worker make a call, and wait for its answer. Raises FailedInHost."""
        number = next(self.calls)
        reply = self.replies[number] = SimpleQueue[Message]()
        self.frames.send("call", run=self.number, call=number, name=name, arguments=arguments)
        answer = reply.get()
        del self.replies[number]
        if answer["failure"] is not None:
            raise FailedInHost(Failure.model_validate(answer["failure"]))


class OperatorHost:
    """Runs the tasks that the worker sends, each in a thread. Threads are kept for later tasks."""

    def __init__(self, frames: Frames, runner: "SparkRunner") -> None:
        self._frames = frames
        self._runner = runner
        self._runs: dict[int, tuple[HostedRun, TaskPayload]] = {}
        self._waiting: SimpleQueue[tuple[HostedRun, TaskPayload, DispatcherLink]] = SimpleQueue()
        self._threads = 0

    def serve(self) -> bool:
        """Serve until the worker sends `stop`. False: the worker ended without sending it."""
        while (message := self._frames.receive()) is not None:
            if message["kind"] == "stop":
                return True
            self._handle(message)
        return False

    def _handle(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "run":
            self._start(message)
        elif kind == "warm":
            threading.Thread(target=self._warm, name="warm").start()
        elif kind == "metrics":
            text = generate_latest(REGISTRY).decode()
            self._frames.send("metrics", number=message["number"], text=text)
        elif message["run"] in self._runs:
            self._pass_on(*self._runs[message["run"]], message)

    def _pass_on(self, run: HostedRun, task: TaskPayload, message: Message) -> None:
        if message["kind"] == "cancel":
            self._runner.cancel(task.task_id, task.attempt)
        elif message["kind"] == "paused":
            run.is_paused = message["value"]
        elif message["kind"] == "reply" and (reply := run.replies.get(message["call"])):
            reply.put(message)

    def _start(self, message: Message) -> None:
        run = HostedRun(message["run"], self._frames, is_paused=message["paused"])
        task = TaskPayload.model_validate(message["task"], context=ALREADY_CHECKED)
        self._runs[run.number] = (run, task)
        self._waiting.put((run, task, run.make_link(message["secrets"], message["credentials"])))
        if len(self._runs) > self._threads:  # no task waits for a thread
            self._threads += 1
            threading.Thread(target=self._run_all, name=f"run-{self._threads}").start()

    def _run_all(self) -> None:
        while True:
            self._run(*self._waiting.get())

    def _run(self, run: HostedRun, task: TaskPayload, link: DispatcherLink) -> None:
        try:
            result = self._runner.run(task, link)
            done: dict[str, object] = {"result": _convert_to_json(result)}
        except BaseException as error:  # an operator may raise anything: every failure is reported
            done = {"failure": _convert_to_json(describe_failure(error))}
        finally:
            del self._runs[run.number]
        self._frames.send("done", run=run.number, **done)

    def _warm(self) -> None:
        try:
            self._runner.warm()
        except TraceError as error:
            self._frames.send("warmed", failure=_convert_to_json(describe_failure(error)))
        else:
            self._frames.send("warmed", failure=None)


def _convert_to_json(model: BaseModel) -> orjson.Fragment:
    return orjson.Fragment(model.model_dump_json())


def main() -> int:
    """Run operators until the worker stops this process, or has ended."""
    # The worker decides when this process ends: by a message, or by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cfg = HostSettings()  # pyright: ignore[reportCallIssue] - filled from the environment
    logs.configure("host", cfg.log_level, copy=output.add_line)
    output.install()
    connection = socket.socket(fileno=cfg.host_fd)
    connection.set_inheritable(False)
    frames = Frames(connection)
    from trace_etl.spark.runner import SparkRunner

    runner = SparkRunner(cfg.make_spark_settings())
    if cfg.data_dsn is not None:
        migrations.apply(cfg.data_dsn)
    frames.send("ready")
    if not OperatorHost(frames, runner).serve():
        # The worker is dead, so the leases of all tasks will be lost: write nothing more.
        os.killpg(0, signal.SIGKILL)
    runner.close()
    os._exit(0)  # operators that ignore their cancellation must not delay the end


if __name__ == "__main__":
    sys.exit(main())
