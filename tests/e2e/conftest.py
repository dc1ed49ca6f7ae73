"""One whole stack for all tests that do not need another configuration."""

from collections.abc import Generator

import pytest

from support.whole_stack import Stack, running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack") / "home") as made:
        yield made
