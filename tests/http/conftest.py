"""One Dispatcher shared by all tests that create their own DAGs and tasks."""

from collections.abc import Generator
from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.services.query import QuerySetup, opened_warehouse


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


@pytest.fixture(scope="module")
def reading(
    request: pytest.FixtureRequest,
    secrets: Secrets,
    templates: Templates,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[QuerySetup]:
    """Run a Query Service over the datasets of the module's `DAG`, with the settings in its `LIMITS`."""
    limits = getattr(request.module, "LIMITS", {})
    objects = tmp_path_factory.mktemp("objects")
    with opened_warehouse(secrets, templates, objects, request.module.DAG, **limits) as setup:
        yield setup


@pytest.fixture
def published() -> str:
    """A new name for a buffered dataset."""
    return f"alerts_{uuid4().hex[:12]}"
