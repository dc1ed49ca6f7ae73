"""What holds for every file of unit tests."""

import threading
from collections.abc import Generator

import pytest

from support.waiting import eventually


@pytest.fixture(autouse=True, scope="module")
def no_threads_left() -> Generator[None]:
    """Fail a file that leaves a thread running for which the test process would wait at its end."""
    before = set(threading.enumerate())

    def list_new() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in before and not t.daemon]

    yield
    eventually(lambda: not list_new(), lambda: f"threads are left: {list_new()}", within=60)
