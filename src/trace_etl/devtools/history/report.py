"""The result of checking a history."""

from dataclasses import dataclass, field
from enum import StrEnum


class Invariant(StrEnum):
    ONE_LIVE_LEASE = "one_live_lease"
    ATTEMPTS_ONLY_GROW = "attempts_only_grow"
    STALE_FENCE = "stale_fence_changes_nothing"
    EVENTS_ONCE = "events_accepted_once"
    ONE_COMPLETION = "one_completion_per_attempt"
    SIDE_EFFECTS = "side_effects_as_committed"


@dataclass(frozen=True)
class Violation:
    """A violated invariant, and the lines of the history that show it."""

    invariant: Invariant
    message: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class HistoryReport:
    violations: list[Violation]
    calls: int = 0
    unanswered: int = 0
    """Calls without a response. The result holds whether or not they were executed."""
    tasks: int = 0
    attempts: int = 0
    unchecked: list[str] = field(default_factory=list[str])
    """Checks that this history has no data for."""

    @property
    def proven(self) -> bool:
        return not self.violations
