"""Calls that a running attempt may make to the Dispatcher. Imports no Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from trace_etl.api.task.credentials import Credentials
from trace_etl.api.task.events import ChainHead, Event
from trace_etl.model.task import Isolation
from trace_etl.spark.errors import TaskCanceled


class EmitEvents(Protocol):
    """Send events before the task completes. Raises TraceError once the lease is lost."""

    def __call__(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None: ...


class PublishBatch(Protocol):
    """Publish a batch of a buffered dataset. Raises TraceError once the lease is lost."""

    def __call__(
        self,
        dataset_uuid: UUID,
        batch_uri: str,
        *,
        record_count: int,
        batch_size_bytes: int,
        content_type: str,
    ) -> None: ...


def ignore_output(content: bytes) -> None:
    """Drop output: the default of `log`."""


def ignore_isolation(level: Isolation) -> None:
    """Drop the level: the default of `isolated`."""


def keep_text(text: str) -> str:
    """Return the text: the default of `mask`."""
    return text


def ignore_head(head: ChainHead) -> None:
    """Report nothing: the default of `report_head`."""


def never_paused() -> bool:
    """Return False: the default of `is_paused`."""
    return False


def never_interrupted() -> bool:
    """Return False: the default of `is_interrupted`."""
    return False


@dataclass(frozen=True)
class DispatcherLink:
    """The attempt's lease, and the Dispatcher calls that it permits."""

    emit: EmitEvents
    publish: PublishBatch | None = None
    lease_token: UUID | None = None
    """The lease. None in an operator host, whose worker makes the calls."""
    token: Callable[[], str] | None = None
    """Returns the current capability token; heartbeats replace it."""
    is_paused: Callable[[], bool] = never_paused
    """Whether the job is paused. A long-running operator sends no events during a pause."""
    is_interrupted: Callable[[], bool] = never_interrupted
    """Whether the attempt must stop. True before its runner is asked to cancel it."""
    report_head: Callable[[ChainHead], None] = ignore_head
    """Reports how far a follower is. Raises TraceError once the lease is lost."""
    log: Callable[[bytes], None] = ignore_output
    """Keeps output of the attempt for people."""
    isolated: Callable[[Isolation], None] = ignore_isolation
    """Reports that the sandbox of the attempt has started, and its level."""
    mask: Callable[[str], str] = keep_text
    """Removes tokens and secrets from a text."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The secrets that the job names, by name."""

    mint: Callable[[], Credentials] | None = None
    """Asks for credentials of S3 for the operator. None in an operator host, which gets a file."""
    credentials_file: Path | None = None
    """The file with these credentials. None: the operator uses those of its process."""

    def check(self) -> None:
        """Raise TaskCanceled if the attempt must stop."""
        if self.is_interrupted():
            raise TaskCanceled("the task was canceled")
