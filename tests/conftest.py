"""Fixtures for everybody: a server per test process, fresh databases per test."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from support.dispatcher import Live, Secrets, live
from support.postgres import Templates, copied, serving
from trace_etl.lite.databases import Dsns

# CI sees the same examples every time; `--hypothesis-profile=long` looks for new ones.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=3_000, print_blob=True
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Generator[Templates]:
    with serving(tmp_path_factory.mktemp("postgres") / "cluster") as made:
        yield made


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.make(tmp_path_factory.mktemp("secrets"))


@pytest.fixture
def dsns(templates: Templates) -> Generator[Dsns]:
    with copied(templates) as fresh:
        yield fresh


@pytest.fixture
def dispatcher(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Live]:
    """A Dispatcher whose loops stand still until a test moves them."""
    with live(secrets, dsns, tmp_path / "objects") as running:
        yield running


# Each needs a JVM of its own or the shared one: one process runs them all, the others run the rest.
_JVM_TESTS = ("tests/spark/", "e2e/test_demo", "e2e/test_quickstart", "e2e/test_stack_services")


class OneProcessForJvms(LoadScopeScheduling):
    """Hands tests out one by one, and those that need a JVM all to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        return "jvm" if any(part in nodeid for part in _JVM_TESTS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneProcessForJvms(config, log)
