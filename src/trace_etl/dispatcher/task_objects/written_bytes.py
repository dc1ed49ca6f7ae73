"""Bytes that each attempt has sent to this Dispatcher, so that none can fill the store."""

from collections import OrderedDict
from uuid import UUID

from trace_etl.model.errors import TooLarge
from trace_etl.model.task import Fence

MIN_OBJECT_BYTES = 4096
"""Bytes counted for each object besides its content: it also needs a file."""
_MAX_ATTEMPTS = 10_000


class WrittenBytes:
    """Counts what attempts send, replaced objects included. Forgets those that wrote longest ago."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._written: OrderedDict[tuple[UUID, int], int] = OrderedDict()

    def add(self, fence: Fence, size: int) -> None:
        """Count bytes. Raises TooLarge if they are too many for one attempt."""
        attempt = (fence.task_id, fence.attempt)
        written = self._written[attempt] = self._written.pop(attempt, 0) + size
        if len(self._written) > _MAX_ATTEMPTS:
            self._written.popitem(last=False)
        if written > self._max_bytes:
            raise TooLarge(
                f"the objects of this attempt have more than {self._max_bytes} bytes; "
                "write less, or raise TRACE_MAX_ATTEMPT_BYTES"
            )
