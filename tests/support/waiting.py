"""Waiting for something to come true."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(holds: Callable[[], T], what: str = "it", *, within: float = 120.0) -> T:
    """Look again and again; fail when it has not come true in time. Returns what was seen."""
    deadline = time.monotonic() + within
    while not (seen := holds()):
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.02)
    return seen
