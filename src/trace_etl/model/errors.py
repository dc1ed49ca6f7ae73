"""Errors with stable codes. The Dispatcher maps each class to an HTTP status, in one table."""

from dataclasses import dataclass
from typing import ClassVar


class TraceError(Exception):
    """An expected error: a stable `code`, and whether a retry can succeed."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    @property
    def detail(self) -> str:
        return str(self)


class Unauthenticated(TraceError):
    """The token is missing or invalid."""

    code = "unauthenticated"


class Forbidden(TraceError):
    """The token is valid, but for another task, attempt, role or scope."""

    code = "forbidden"


class NotFound(TraceError):
    """The requested object does not exist."""

    code = "not_found"


class MethodNotAllowed(TraceError):
    """The path exists, but does not support this HTTP method."""

    code = "method_not_allowed"


class TooLarge(TraceError):
    """The request body is larger than the limit."""

    code = "too_large"


class Conflict(TraceError):
    """The request contradicts the current state."""

    code = "conflict"


class LeaseLost(Conflict):
    """The caller's attempt or lease token is not the current one. `reason` says which."""

    code = "lease_lost"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class CompletionMismatch(Conflict):
    """The same attempt was already completed with different content."""

    code = "completion_mismatch"


class PartitionOverlap(Conflict):
    """The output would put the same blocks into two partitions."""

    code = "partition_overlap"


class OutputNotReady(Conflict):
    """The output's prefix has no `_SUCCESS` marker."""

    code = "output_not_ready"


class NameTaken(Conflict):
    """The name of the published dataset belongs to another producer."""

    code = "name_taken"


class DeployConflict(Conflict):
    """Another deploy changed the DAG after this plan was made."""

    code = "deploy_conflict"


class NothingToRollBack(Conflict):
    """The DAG has no earlier version that can be restored."""

    code = "nothing_to_roll_back"


@dataclass(frozen=True)
class Fault:
    """One error in an input: where it is, what is wrong, and what to do."""

    field: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = f"{self.line}:{self.column}: " if self.line is not None else ""
        return f"{where}{self.field}: {self.message}" if self.field else f"{where}{self.message}"


class Invalid(TraceError):
    """The input is malformed. Carries every fault found, not only the first."""

    code = "invalid"

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


class Unavailable(TraceError):
    """A required service does not answer. The same call may succeed later."""

    code = "unavailable"
    retryable = True
