"""Results of data checks."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from trace_etl.api.body import Key, ListReply, Name, Reply, UserRequest
from trace_etl.api.task.checks import CheckKind, OnFailure
from trace_etl.api.task.events import Reason


class CheckResultItem(Reply):
    """The last result of a check for a partition."""

    result_id: UUID
    dataset: str | None
    dag: str
    job: str
    output: str
    dataset_version: UUID
    partition_key: str
    check: str
    kind: CheckKind
    on_failure: OnFailure
    consumers: list[str]
    state: Literal["passed", "warned", "blocked", "holding", "accepted"]
    """`blocked`: the attempt failed and nothing was committed. `holding`: consumers wait."""
    passed: bool
    checked_rows: int
    failing_rows: int
    samples: list[dict[str, str | None]]
    """The key columns of a few failing rows."""
    message: str
    task_id: UUID
    attempt: int
    checked_at: datetime
    accepted_at: datetime | None
    accepted_by: str | None
    accept_reason: str | None


class CheckResultList(ListReply[CheckResultItem]):
    """One page of results."""


class AcceptRequest(UserRequest):
    """Failed results of a committed partition that are accepted as they are."""

    dataset: Name = Field(description="Published name, or an output as dag.job.output.")
    partition_key: Key
    check: Name | None = Field(None, description="Only this check. Default: all failed ones.")
    reason: Reason = ""


class AcceptReply(Reply):
    dataset: str
    partition_key: str
    checks: list[str]
    """The checks whose results were accepted."""
    released_jobs: int
    """How many jobs no longer wait for one of them."""
