"""What a history proves."""

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
    """An invariant that did not hold, and the lines that show it."""

    invariant: Invariant
    message: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    violations: list[Violation]
    calls: int = 0
    unanswered: int = 0
    """Calls that may or may not have happened: the verdict holds either way."""
    tasks: int = 0
    attempts: int = 0
    unchecked: list[str] = field(default_factory=list[str])
    """What this history cannot speak about."""

    @property
    def proven(self) -> bool:
        return not self.violations
