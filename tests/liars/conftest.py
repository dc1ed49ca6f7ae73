"""One node that tells every lie."""

from collections.abc import Generator

import pytest

from support.chain.lying_node import LyingNode, running_liar


@pytest.fixture(scope="session")
def node() -> Generator[LyingNode]:
    with running_liar() as made:
        yield made
