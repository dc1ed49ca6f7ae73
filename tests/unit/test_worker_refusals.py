"""What a worker says of an attempt whose completion was refused."""

import threading
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from support.spark_tasks import task
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.payload import InvalidScope, Scope
from trace_etl.http.dispatcher_client import Refused
from trace_etl.worker.attempt import Attempt

RANGE = Scope(partition_key="0-9", start=0, end=9)
CURSOR = Scope(cursor=105, after=71)
CHANGE = InvalidScope(
    invalidation_id=uuid4(), dataset_uuid=uuid4(), dataset_version=uuid4(), kind="row_range"
)


class Strict:
    """A Dispatcher that takes no success."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.heard: list[bodies.Complete] = []

    def complete(self, body: bodies.Complete, *words: object) -> None:
        if body.status == "Completed":
            raise Refused(409, self._code, "no")
        self.heard.append(body)


class Quick:
    def run(self, task: bodies.TaskPayload, link: object = None) -> bodies.TaskResult:
        return bodies.TaskResult()

    def cancel(self, task_id: UUID) -> None:
        raise AssertionError("nobody cancels it")


def _said(code: str, **fields: Any) -> list[bodies.Complete]:
    payload = task("sql", {}, ["out"]).model_copy(update=fields)
    claimed = bodies.Claimed(
        attempt=1,
        lease_token=uuid4(),
        lease_expires_at=datetime.now(UTC),
        capability_token="",
        task=payload,
    )
    office = Strict(code)
    Attempt(claimed, cast("Any", office), Quick(), threading.Event()).run()
    return office.heard


@pytest.mark.parametrize(
    ("code", "fields", "retryable"),
    [
        ("output_not_ready", {"scope": RANGE}, True),
        ("forbidden", {"scope": RANGE}, False),
        ("partition_overlap", {"scope": RANGE}, False),
        ("partition_overlap", {"scope": CURSOR, "invalidation": CHANGE}, False),
        ("partition_overlap", {"scope": CURSOR}, True),  # the next attempt begins elsewhere
    ],
)
def test_it_fails_with_the_reason_and_is_tried_again_where_that_helps(
    code: str, fields: dict[str, Any], retryable: bool
) -> None:
    (said,) = _said(code, **fields)
    assert (said.status, said.error_code, said.retryable) == ("Failed", code, retryable)


def test_who_lost_the_lease_says_nothing_more() -> None:
    assert _said("lease_lost", scope=RANGE) == []
