"""Platform services and tasks for tests of functions, without a stack."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx

from trace_etl.api.task.credentials import OBJECTS_PATH
from trace_etl.api.task.invocation import Invocation
from trace_etl.sandbox.broker.broker import PlatformClients
from trace_etl.spark.dispatcher_link import DispatcherLink

ORG, OTHER_ORG = UUID(int=1), UUID(int=2)
OBJECT_CALLS: dict[str, Any] = {
    **{"kind": "objects", "expires_at": "2100-01-01T00:00:00Z", "objects_path": OBJECTS_PATH},
    **{"read_prefixes": [], "write_prefixes": [], "scratch_prefix": "", "export_prefix": ""},
}
"""The answer of a platform whose objects are not on S3, when it is asked for credentials."""


@dataclass
class Platform:
    """Answers the calls of brokers, and records them with the token that they carry."""

    calls: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    """Token, path and body of each call."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    cancel_requested: bool = False
    """What a heartbeat answers."""

    def answer(self, request: httpx.Request) -> httpx.Response:
        token = request.headers["X-Trace-Task-Capability"]
        is_json = request.headers.get("content-type") == "application/json"
        body = json.loads(request.content) if is_json else request.content
        with self.lock:
            self.calls.append((token, request.url.path, body))
        if request.url.path == "/v1/task/query":
            return httpx.Response(200, json={"columns": [{"name": "n"}], "rows": [[1], [2]]})
        if request.url.path == "/v1/task/credentials":
            return httpx.Response(200, json=OBJECT_CALLS)
        return httpx.Response(200, json={"cancel_requested": self.cancel_requested})

    def published(self) -> list[tuple[str, str, int]]:
        """List what was published: token, task and number of rows."""
        path = "/v1/task/buffer-publish"
        return [(t, b["task_id"], b["record_count"]) for t, p, b in self.calls if p == path]


@contextmanager
def platform() -> Iterator[tuple[Platform, PlatformClients]]:
    made = Platform()
    transport = httpx.MockTransport(made.answer)
    with httpx.Client(base_url="https://platform", transport=transport) as client:
        yield made, PlatformClients(client, client)


def make_invocation(sha256: str, handler: str = "rule.handler", **changes: Any) -> Invocation:
    """Return an invocation of a function with one input and one output."""
    storage = {"scheme": "file", "bucket": "org", "prefix": "out/"}
    dataset = {"dataset_uuid": UUID(int=7), "dataset_version": UUID(int=8)}
    udf = {"bundle": "rule", "sha256": sha256, "handler": handler, "bundle_url": "s3://org/zip"}
    fields: dict[str, Any] = {
        "task_id": uuid4(),
        "attempt": 1,
        "job": {"dag_name": "dag", "name": "alert"},
        "operator": "udf",
        "runtime": "lambda",
        "config": {"at_least": 5},
        "udf": udf,
        "inputs": [{"input_index": 0, "name": "receivers", **dataset}],
        "outputs": [{"output_index": 0, "name": "alerts", "storage_ref": storage, **dataset}],
        "lease_token": uuid4(),
        "lease_expires_at": datetime.now(UTC),
        "capability_token": f"token-{uuid4()}",
        "bundle_url": udf["bundle_url"],
        "org_id": ORG,
    }
    return Invocation.model_validate({**fields, **changes})


@dataclass
class Link:
    """The link of an attempt, with the output of its function."""

    invocation: Invocation
    output: bytearray = field(default_factory=bytearray)

    def make(self) -> DispatcherLink:
        return DispatcherLink(
            lambda events, invalidations=(): None,
            lease_token=self.invocation.lease_token,
            token=lambda: self.invocation.capability_token,
            log=self.output.extend,
        )
