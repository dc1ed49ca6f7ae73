"""Messages on the queues."""

from uuid import UUID

from trace_etl.api.body import Request


class WakeUp(Request):
    """Tells a worker that a task may be ready. The worker must claim the task before running it."""

    task_id: UUID


class BufferMessage(Request):
    """Tells the sink to write a batch. Other fields of the message are for debugging only."""

    publish_id: UUID
