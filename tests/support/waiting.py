"""Waiting for something to come true."""

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], what: str = "it", *, within: float = 120.0) -> None:
    """Look again and again; fail when it has not come true in time."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.02)
