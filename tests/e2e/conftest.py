"""One whole stack for all tests that do not need another configuration."""

from collections.abc import Generator

import pytest

from support.whole_stack import Stack, running_stack

RUNTIMES = """
small_functions: {launcher: sandbox, trust: untrusted, language: python, memory_mib: 256, slots: 1}
"""
"""An entry beside the shipped runtimes."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    home = tmp_path_factory.mktemp("stack") / "home"
    home.mkdir(mode=0o700)
    (home / "runtimes.yaml").write_text(RUNTIMES)
    with running_stack(home) as made:
        yield made
