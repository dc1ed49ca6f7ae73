"""The queue interface that the Dispatcher, the worker and the sink use.

Both a Postgres table and SQS can implement this contract:

- Delivery is at least once and in no guaranteed order.
- A received message is hidden for its visibility timeout. If the consumer neither deletes nor
  extends it in time, the queue delivers it again, with a new receipt.
- A receipt is valid until the next delivery of its message. Calls with an outdated receipt have no
  effect and raise nothing.
- Counts are approximate.
- A message that was received `MAX_RECEIVES` times without being deleted goes to the queue's
  dead-letter queue.

The Dispatcher is asynchronous and only sends; the worker and the sink are synchronous and only
receive. So the interface has two sides, and one `Queue` that opens them.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from trace_etl.model.errors import TraceError, Unavailable

MAX_RECEIVES = 100


class QueueUnavailable(Unavailable):
    """The queue service does not answer; the same call may work later."""


class InvalidQueueName(TraceError, code="invalid_queue_name"):
    """A queue name is not a lowercase word of letters, digits and underscores."""


@dataclass(frozen=True)
class Message:
    """One delivery of a message."""

    queue: str
    body: Mapping[str, Any]
    receipt: str
    """Identifies this delivery, not the message: the next delivery has another receipt."""
    receive_count: int
    """How many times the message was delivered, including this delivery."""


@dataclass(frozen=True)
class QueueDepth:
    """The approximate content of a queue."""

    visible: int
    """Messages that a consumer could receive now."""
    hidden: int
    """Messages that are being processed, or delayed."""
    oldest_age: timedelta | None
    """The age of the oldest message, hidden or not. None if the queue is empty."""


class QueueProducer(Protocol):
    """The sending and observing side. Every method raises QueueUnavailable."""

    async def send(
        self,
        messages: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        groups: Sequence[str | None] | None = None,
        positions: Sequence[int | None] | None = None,
        bulk: bool = False,
    ) -> None:
        """Send (queue, body) pairs. Consumers receive `bulk` messages after all others.

        Messages of different groups are received in turns, those of one group in order, as far as
        the queue service supports it. `groups` has the group of each message. `positions` has its
        place among the data of the group: messages of earlier data, sent after messages of later data
        that still wait, do not wait behind these.
        """
        ...

    async def depth(self, queue: str) -> QueueDepth: ...

    async def consumers(self, queue: str | None = None) -> set[str] | None:
        """List the ids of the connected consumers of one queue, or of all queues.

        None means that this queue service does not know its consumers.
        """
        ...

    async def lost_consumers(self) -> set[str] | None:
        """List the ids of consumers that disconnected without `close`, for at least an hour.

        None means that this queue service does not know its consumers.
        """
        ...


class QueueConsumer(Protocol):
    """The receiving side. Thread-safe. Every method raises QueueUnavailable."""

    def receive(
        self,
        *,
        limit: int,
        visibility: timedelta,
        wait: timedelta = timedelta(0),
        stop: threading.Event | None = None,
        queues: Sequence[str] | None = None,
    ) -> list[Message]:
        """Receive visible messages of these queues (default: all) and hide them for `visibility`.

        If there are none, wait up to `wait` for the first one, or until `stop` is set. Only one
        thread may wait at a time.
        """
        ...

    def stay_connected(self) -> None:
        """Connect again if the connection broke. A consumer that does not receive calls this often."""
        ...

    def extend(self, message: Message, visibility: timedelta) -> None:
        """Keep a message hidden for `visibility` from now."""
        ...

    def delay(self, message: Message, delay: timedelta, *, counted: bool = True) -> None:
        """Show a message again after `delay`. With `counted=False` this delivery is not counted."""
        ...

    def delete(self, *messages: Message) -> None: ...

    def dead_letter(self, message: Message) -> None:
        """Move a message to the dead-letter queue of its queue, for users to inspect."""
        ...

    def close(self) -> None: ...


class Queue(Protocol):
    """A queue service. `main()` chooses the implementation."""

    def prepare(self) -> None:
        """Create or update the tables or queues of the service. Safe to call concurrently."""
        ...

    def producer(self, *, call_timeout: timedelta) -> AbstractAsyncContextManager[QueueProducer]:
        """Open the sending side. Its calls time out after `call_timeout`."""
        ...

    def consumer(self, queues: Sequence[str], consumer_id: str) -> QueueConsumer:
        """Open the receiving side of several queues. It connects on the first call."""
        ...


def endless_queue(queue: str) -> str:
    """The queue of wake-ups of tasks that never end. Workers receive from it without a free slot."""
    return f"{queue}_endless"


def dead_letter_queue(queue: str) -> str:
    return f"{queue}_dlq"
