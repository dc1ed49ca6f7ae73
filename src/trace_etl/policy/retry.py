"""When to try again."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Backoff:
    """Exponential: `first`, doubling up to `most`, spread by ±`jitter` of itself."""

    first: timedelta
    most: timedelta
    jitter: float = 0.0

    def after(self, tries: int, *, spread: float | None = None) -> timedelta:
        """How long to wait after the given number of failures (1-based).

        `spread` in [-1, 1] fixes the jitter; without it, chance decides.
        """
        base = min(self.first * 2 ** min(tries - 1, 32), self.most)
        chance = random.uniform(-1, 1) if spread is None else spread  # noqa: S311
        return base * (1 + self.jitter * chance)


TASK_RETRY = Backoff(timedelta(seconds=30), timedelta(minutes=10), jitter=0.5)
OUTBOX_RETRY = Backoff(timedelta(seconds=1), timedelta(minutes=5))


def retry_delay(
    attempt: int, max_attempts: int, retryable: bool, policy: Backoff
) -> timedelta | None:
    """The wait before the next attempt, or None when this failure is the last."""
    if not retryable or attempt >= max_attempts:
        return None
    return policy.after(attempt)
