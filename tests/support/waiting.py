"""Waits for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_MIN_PAUSE, _MAX_PAUSE = 0.02, 0.5


def eventually(
    condition: Callable[[], T],
    description: str | Callable[[], str] = "the condition",
    *,
    within: float = 300.0,
) -> T:
    """Poll until the condition is truthy; fail after `within` seconds. Returns its value.

    A description that is a function is called at the failure, to describe what is missing then.

    The polling interval grows with the waiting time, because polling takes CPU from the awaited work.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        if waited >= within:
            missing = description() if callable(description) else description
            raise AssertionError(f"not reached within {within} s: {missing}")
        time.sleep(min(_MAX_PAUSE, max(_MIN_PAUSE, waited / 20)))
    return value
