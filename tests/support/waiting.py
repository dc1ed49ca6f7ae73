"""Waiting for something to come true."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_SOONEST, _LATEST = 0.02, 0.25


def eventually(holds: Callable[[], T], what: str = "it", *, within: float = 120.0) -> T:
    """Look again and again; fail when it has not come true in time. Returns what was seen.

    The longer it takes, the longer the pauses: looking takes the cores from what is waited for.
    """
    began = time.monotonic()
    while not (seen := holds()):
        waited = time.monotonic() - began
        assert waited < within, f"never came true: {what}"
        time.sleep(min(_LATEST, max(_SOONEST, waited / 20)))
    return seen
