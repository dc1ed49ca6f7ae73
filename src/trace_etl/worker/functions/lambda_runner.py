"""Run invocations of Lambda functions in warm environments."""

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from trace_etl.api.task.invocation import Invocation
from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.api.task.payload import TaskFunction
from trace_etl.sandbox.broker.broker import AttemptIdentity
from trace_etl.sandbox.broker.runtime_api import InvocationRequest
from trace_etl.sandbox.process import Ended, Program
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.worker.functions.bundle_programs import BundleRefused, make_lambda_program
from trace_etl.worker.functions.environments import Environment, EnvironmentKey, EnvironmentPool
from trace_etl.worker.functions.function_results import (
    Bundles,
    FunctionFailed,
    make_result,
    over_memory,
)

_log = structlog.stdlib.get_logger()


@dataclass
class LambdaRunner:
    """Runs each invocation in an environment of its function, warm if there is one."""

    bundles: Bundles
    environments: EnvironmentPool
    _running: dict[tuple[UUID, int], Environment] = field(
        default_factory=dict[tuple[UUID, int], Environment]
    )
    """The environments by task and attempt."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, task: TaskPayload, link: DispatcherLink) -> TaskResult:
        """Run the function of a task. Raises TraceError, OSError."""
        if not isinstance(task, Invocation) or not (task.udf and link.token and link.lease_token):
            raise BundleRefused(f"the task of the operator {task.operator} names no bundle")
        key, function = make_key(task, task.udf), task.udf
        timeout = float(task.timeout_seconds)
        environment = self.environments.take(key, timeout, lambda place: self._prepare(task, place))
        is_clean = False
        try:
            with self._lock:
                link.check()
                self._running[task.task_id, task.attempt] = environment
            link.isolated("lambda")
            identity = AttemptIdentity(task.task_id, task.attempt, link.lease_token, link.token)
            request = _make_request(task, function)
            result = environment.invoke(request, identity, link.log)
            self._check(task, environment, result.error, link)
            is_clean = True
            return make_result(task, environment.published)
        finally:
            with self._lock:
                self._running.pop((task.task_id, task.attempt), None)
                is_clean = is_clean and not link.is_interrupted()
            self.environments.give_back(key, environment, is_clean=is_clean)

    def cancel(self, task_id: UUID, attempt: int, within: float = 0.0) -> None:
        """End the environment of an attempt at once."""
        with self._lock:  # held while it is killed: after the attempt, another one may use it
            environment = self._running.get((task_id, attempt))
            if environment is not None:
                environment.kill()

    def _prepare(self, task: TaskPayload, place: Path) -> Program:
        assert task.udf
        self.bundles.unpack(task.udf, place / "bundle")
        runtime, timeout = self.bundles.runtime(task), float(task.timeout_seconds)
        return make_lambda_program(task.udf, place / "bundle", runtime, timeout)

    def _check(
        self, task: TaskPayload, environment: Environment, error: str, link: DispatcherLink
    ) -> None:
        """Raise the error of an invocation that did not succeed."""
        ended = environment.ended
        if isinstance(ended, Exception):
            raise ended
        if isinstance(ended, Ended) and ended.reason == "memory":
            raise over_memory(self.bundles.runtime(task), task.runtime)
        if error or ended is not None:
            output = link.mask(environment.output.strip()) or "no output"
            raise FunctionFailed(f"{link.mask(error)}: {output}")


def make_key(task: Invocation, function: TaskFunction) -> EnvironmentKey:
    """Return what another invocation must have in common with this one to share its environment."""
    grants: list[Any] = [
        [(str(i.dataset_uuid), str(i.dataset_version), i.where, i.name) for i in task.inputs],
        [(str(o.dataset_uuid), str(o.dataset_version), o.name) for o in task.outputs],
    ]
    return EnvironmentKey(
        org_id=str(task.org_id),
        runtime=task.runtime,
        job=f"{task.job.dag_name}/{task.job.name}",
        sha256=function.sha256,
        handler=function.handler,
        grants=json.dumps(grants, sort_keys=True),
    )


def _make_request(task: Invocation, function: TaskFunction) -> InvocationRequest:
    return InvocationRequest(
        request_id=str(task.lease_token),
        event=task.model_dump_json(exclude={"org_id"}).encode(),
        function=function.bundle,
        deadline=time.time() + task.timeout_seconds,
    )
