"""Tasks, attempts and leases."""

from enum import StrEnum
from typing import Literal, NamedTuple
from uuid import UUID

TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
ReportedStatus = Literal["Completed", "Failed", "Canceled"]
"""How a worker says that its attempt ended."""


class NotClaimedReason(StrEnum):
    """Why the Dispatcher refused a claim."""

    ALREADY_RUNNING = "AlreadyRunning"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    NOT_FOUND = "NotFound"
    NOT_READY = "NotReady"


class Cause(StrEnum):
    """Why the Dispatcher ended an attempt without a completion from its worker."""

    LEASE_EXPIRED = "lease_expired"
    HARD_TIMEOUT = "hard_timeout"
    WORKER_GONE = "worker_gone"


Isolation = Literal["namespaces", "lambda", "reduced"]
"""How untrusted code is isolated: in a sandbox of its own, in one that it keeps between tasks, or in one without
namespaces, which an administrator has to choose."""


class Fence(NamedTuple):
    """Identifies the current lease of an attempt. Every task-scoped call carries one."""

    task_id: UUID
    attempt: int
    lease_token: UUID
