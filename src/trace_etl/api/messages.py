"""Messages on the queues."""

from uuid import UUID

from trace_etl.api.body import Request


class WakeUp(Request):
    """Somebody may want to claim this task. Nothing more."""

    task_id: UUID


class BufferMessage(Request):
    """Somebody should write this batch. The rest of the message is for people who look at it."""

    publish_id: UUID
