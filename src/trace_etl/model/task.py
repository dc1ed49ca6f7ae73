"""Tasks, attempts and leases."""

from enum import StrEnum
from typing import NamedTuple
from uuid import UUID


class TaskStatus(StrEnum):
    QUEUED = "Queued"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


class NotClaimedReason(StrEnum):
    ALREADY_RUNNING = "AlreadyRunning"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    NOT_FOUND = "NotFound"
    NOT_READY = "NotReady"


class Cause(StrEnum):
    """Why an attempt ended without the worker's word."""

    LEASE_EXPIRED = "lease_expired"
    HARD_TIMEOUT = "hard_timeout"
    WORKER_GONE = "worker_gone"


class Fence(NamedTuple):
    """The right to speak for an attempt: every task-scoped call carries one."""

    task_id: UUID
    attempt: int
    lease_token: UUID
