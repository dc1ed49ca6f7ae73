"""One of two Dispatchers over one database."""

import pytest

from support.lifecycle.lifecycle import Bench


@pytest.fixture
def one(replicas: list[Bench]) -> Bench:
    return replicas[0]
