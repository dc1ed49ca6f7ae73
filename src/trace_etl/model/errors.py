"""Errors with stable codes. The Dispatcher maps each class to an HTTP status, in one table."""

from dataclasses import dataclass
from typing import ClassVar


class TraceError(Exception):
    """An expected error: a stable `code`, and whether a retry can succeed."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    is_premature: ClassVar[bool] = False
    """Whether a task failed because it cannot begin yet. Such an attempt does not count."""
    unreachable: ClassVar[bool] = False
    """Whether an endpoint did not answer. A task waits for it much longer than for other errors."""

    def __init_subclass__(
        cls, *, code: str = "", retryable: bool | None = None, unreachable: bool | None = None
    ) -> None:
        """Set the attributes that the class statement gives. The others are inherited."""
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.unreachable = cls.unreachable if unreachable is None else unreachable
        cls.retryable = cls.retryable if retryable is None else retryable

    @property
    def detail(self) -> str:
        return str(self)


class Unauthenticated(TraceError):
    """The token is missing or invalid."""

    code = "unauthenticated"


class Forbidden(TraceError, code="forbidden"):
    """The token is valid, but for another task, attempt, role or scope."""


class NotFound(TraceError, code="not_found"):
    """The requested object does not exist."""


class UseCredentials(NotFound, code="use_credentials"):
    """This service does not serve objects: the caller needs credentials of the object store."""


class MethodNotAllowed(TraceError, code="method_not_allowed"):
    """The path exists, but does not support this HTTP method."""


class TooLarge(TraceError, code="too_large"):
    """The request body is larger than the limit."""


class PreconditionFailed(TraceError, code="precondition_failed"):
    """A condition in the request headers does not hold."""


class RangeNotSatisfiable(TraceError, code="range_not_satisfiable"):
    """The requested range lies outside of the object."""


class CursorExpired(TraceError, code="cursor_expired"):
    """A log can no longer be read after a cursor. The caller reads everything again."""

    def __init__(self, detail: str, *, cursor: str, dataset_version: str) -> None:
        super().__init__(detail)
        self.cursor = cursor
        """The cursor from which the caller reads the log after it has read everything again."""
        self.dataset_version = dataset_version


class TooManyRequests(TraceError, code="too_many_requests"):
    """The caller sends more requests than are allowed. The same call may succeed later."""

    retryable = True


class Conflict(TraceError, code="conflict"):
    """The request contradicts the current state."""


class NameInUse(Conflict, code="name_in_use"):
    """Jobs of other DAGs read a published name that would disappear."""


class RowsLost(Conflict, code="rows_lost"):
    """A deploy would replace a table by one without rows that cannot be made again."""


class LeaseLost(Conflict, code="lease_lost"):
    """The caller's attempt or lease token is not the current one. `reason` says which."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class CompletionMismatch(Conflict, code="completion_mismatch"):
    """The same attempt was already completed with different content."""


class PartitionOverlap(Conflict, code="partition_overlap"):
    """The output would put the same blocks into two partitions."""


class BrokenLink(Conflict, code="chain_mismatch"):
    """The first block of a partition is not the child of the last block before it."""


class RowsChanged(Conflict, code="rows_changed"):
    """A compaction did not write exactly the rows of its inputs."""


class OutputNotReady(Conflict, code="output_not_ready"):
    """The output's prefix has no `_SUCCESS` marker."""


class NameTaken(Conflict, code="name_taken"):
    """The name of the published dataset belongs to another producer."""


class DeployConflict(Conflict, code="deploy_conflict"):
    """Another deploy changed the DAG after this plan was made."""


class NothingToRollBack(Conflict, code="nothing_to_roll_back"):
    """The DAG has no earlier version that can be restored."""


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


class Invalid(TraceError, code="invalid"):
    """The input is malformed. The error lists every fault, not only the first."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults

    def __reduce__(self) -> tuple[type["Invalid"], tuple[list[Fault]]]:
        """Pickle the faults: the error crosses process boundaries."""
        return type(self), (self.faults,)


class NotBuffered(Invalid, code="not_buffered"):
    """A batch was published to a dataset that is not buffered."""


class Unavailable(TraceError, code="unavailable", retryable=True):
    """A required service does not answer. The same call may succeed later."""
