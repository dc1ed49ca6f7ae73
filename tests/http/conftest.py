"""One Dispatcher shared by all tests that create their own DAGs and tasks."""

from collections.abc import Generator

import pytest

from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied


@pytest.fixture(scope="session")
def shared(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """Run a Dispatcher whose loops run only when a test calls them."""
    objects = tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects) as running,
        bench(running) as own_bench,
    ):
        yield own_bench
