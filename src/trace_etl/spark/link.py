"""What an attempt may say to the Dispatcher while it still runs. Needs no Spark to import."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from trace_etl.api.task.events import Event


class EmitEvents(Protocol):
    """Tell of changes now, before the task is over. Raises TraceError once the lease is lost."""

    def __call__(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None: ...


class PublishBatch(Protocol):
    """Offer a batch of a buffered dataset. Raises TraceError once the lease is lost."""

    def __call__(
        self, dataset_uuid: UUID, batch_uri: str, *, record_count: int, batch_size_bytes: int
    ) -> None: ...


def never() -> bool:
    """What is asked of nobody."""
    return False


@dataclass(frozen=True)
class DispatcherLink:
    """The attempt's own line to the Dispatcher: its lease, and the calls for what it has made."""

    lease_token: UUID
    emit: EmitEvents
    publish: PublishBatch | None = None
    is_paused: Callable[[], bool] = never
    """Whether the job is paused: whoever never ends announces nothing meanwhile."""
