"""Two Dispatchers over one database, whose loops run only when a test calls them."""

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied


@pytest.fixture(scope="module")
def replicas(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    """Dispatcher replicas whose loops run only when a test calls them."""
    objects = tmp_path_factory.mktemp("objects")
    with ExitStack() as stack:
        dsns = stack.enter_context(copied(templates))
        running = [stack.enter_context(live(secrets, dsns, objects)) for _ in range(2)]
        yield [stack.enter_context(bench(one)) for one in running]


@pytest.fixture
def one(replicas: list[Bench]) -> Bench:
    return replicas[0]
