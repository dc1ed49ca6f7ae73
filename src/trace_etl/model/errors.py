"""What can go wrong, each with a stable code. The Dispatcher maps them to HTTP, in one table."""

from dataclasses import dataclass
from typing import ClassVar


class TraceError(Exception):
    """A failure somebody can act on: a stable `code`, and whether trying again can help."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    @property
    def detail(self) -> str:
        return str(self)


class Unauthenticated(TraceError):
    """No token, or one that does not verify."""

    code = "unauthenticated"


class Forbidden(TraceError):
    """A good token for another task, attempt, role or scope."""

    code = "forbidden"


class NotFound(TraceError):
    """There is no such thing."""

    code = "not_found"


class MethodNotAllowed(TraceError):
    """The path exists, but does not answer to this method."""

    code = "method_not_allowed"


class TooLarge(TraceError):
    """More than anybody should send."""

    code = "too_large"


class Conflict(TraceError):
    """The world is not as the caller believes."""

    code = "conflict"


class LeaseLost(Conflict):
    """The fence: this attempt or lease is not the current one. `reason` says which."""

    code = "lease_lost"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class CompletionMismatch(Conflict):
    """The same attempt was completed before, with other content."""

    code = "completion_mismatch"


class PartitionOverlap(Conflict):
    """A range that would put the same blocks into two partitions."""

    code = "partition_overlap"


class OutputNotReady(Conflict):
    """A published prefix has no `_SUCCESS` marker."""

    code = "output_not_ready"


class NameTaken(Conflict):
    """A published dataset name belongs to another producer."""

    code = "name_taken"


class DeployConflict(Conflict):
    """The DAG is not the one that the plan was made for: somebody else deployed."""

    code = "deploy_conflict"


class NothingToRollBack(Conflict):
    """There is no version of the DAG before this one, or none that could come back."""

    code = "nothing_to_roll_back"


@dataclass(frozen=True)
class Fault:
    """One thing wrong with an input: where, what, and what would be right."""

    field: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = f"{self.line}:{self.column}: " if self.line is not None else ""
        return f"{where}{self.field}: {self.message}" if self.field else f"{where}{self.message}"


class Invalid(TraceError):
    """Malformed input; carries every fault found, not only the first."""

    code = "invalid"

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


class Unavailable(TraceError):
    """A part we lean on does not answer; the same call may work later."""

    code = "unavailable"
    retryable = True
