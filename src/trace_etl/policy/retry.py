"""Retry decisions: whether a failed attempt is retried, and after which delay."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: `initial`, doubling up to `max_delay`, spread by ±`jitter` (a ratio).

    No delay is longer than `max_delay`.
    """

    initial: timedelta
    max_delay: timedelta
    jitter: float = 0.0

    @classmethod
    def of_seconds(cls, initial: float, max_delay: float, *, jitter: float = 0.0) -> "Backoff":
        return cls(timedelta(seconds=initial), timedelta(seconds=max_delay), jitter)

    def delay(self, failures: int, *, spread: float | None = None) -> timedelta:
        """Return the delay after the given number of consecutive failures (1 or more).

        `spread` in [0, 1] sets the place between the shortest and the longest delay; None chooses it at
        random.
        """
        base = min(self.initial * 2 ** min(failures - 1, 32), self.max_delay)
        shortest = base * (1 - self.jitter)
        longest = min(base * (1 + self.jitter), self.max_delay)
        chosen = random.random() if spread is None else spread  # noqa: S311
        return shortest + (longest - shortest) * chosen

    def seconds(self, failures: int) -> float:
        """Return the delay in seconds after the given number of consecutive failures."""
        return self.delay(failures).total_seconds()


TASK_RETRY = Backoff(timedelta(seconds=30), timedelta(minutes=10), jitter=0.5)
OUTBOX_RETRY = Backoff(timedelta(seconds=1), timedelta(minutes=5))


def retry_delay(attempt: int, backoff: Backoff, *, retryable: bool) -> timedelta | None:
    """Return the delay before the next attempt, or None if the failure must not be retried.

    The limit of attempts and a cancel request are columns of the task. The SQL function
    `next_attempt_of` applies them, and the policy of the job, when the failure is stored.
    """
    return backoff.delay(attempt) if retryable else None
