"""What an attempt may say to the Dispatcher while it still runs. Needs no Spark to import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from trace_etl.wire.task import Event


class Emit(Protocol):
    """Tell of changes now, before the task is over. Raises TraceError once the lease is lost."""

    def __call__(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None: ...


@dataclass(frozen=True)
class Link:
    """The attempt's own line to the Dispatcher: its lease, and the call for events."""

    lease_token: UUID
    emit: Emit
