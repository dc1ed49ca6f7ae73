"""Shared fixtures: a Postgres server per test process, fresh databases per test."""

import faulthandler
import functools
import gc
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import typer.testing
from hypothesis import HealthCheck, settings

from support.data.buffered import SinkSetup, running_sink
from support.kernels import without_kernels
from support.lifecycle.lifecycle import Bench, bench
from support.scheduling import GroupScheduling, order_key
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied, postgres_server
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.proof import native
from trace_etl.sandbox.doctor import examine_required

if TYPE_CHECKING:
    from support.services.anvil_stack import AnvilStack

# CI runs the same examples every time; `--hypothesis-profile=long` searches for new ones.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=3_000, print_blob=True
)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Generator[Templates]:
    with postgres_server(tmp_path_factory.mktemp("postgres") / "cluster") as made:
        yield made


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.make(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Skip if this machine cannot isolate code, with the reason of `trace doctor`.

    With TRACE_REQUIRE_SANDBOX, as in CI, this is an error.
    """
    missing = [f for f in examine_required() if f.is_required and not f.works]
    if missing:
        reason = f"{missing[0].layer}: {missing[0].detail}; {missing[0].fix}"
        (pytest.fail if os.environ.get("TRACE_REQUIRE_SANDBOX") else pytest.skip)(reason)


@pytest.fixture(params=["python", "native"], scope="module")
def each_implementation(request: pytest.FixtureRequest) -> Generator[None]:
    """Run the tests of a module twice: in Python only, and with the native package, if it is installed."""
    if request.param == "native":
        if native.kernels is None:
            pytest.skip("trace-etl-native is not installed: make native")
        yield
    else:
        with without_kernels():
            yield


@pytest.fixture
def dsns(templates: Templates) -> Generator[Dsns]:
    with copied(templates) as fresh:
        yield fresh


@pytest.fixture
def dispatcher(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Live]:
    """A Dispatcher whose loops run only when a test calls them."""
    with live(secrets, dsns, tmp_path / "objects") as running:
        yield running


@pytest.fixture
def alone(dispatcher: Live) -> Generator[Bench]:
    """A Dispatcher with databases of its own, for one test: the test reads or changes all rows of a table."""
    with bench(dispatcher) as made:
        yield made


@pytest.fixture(scope="module")
def own_bench(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher with databases of its own, for the tests of one file."""
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as made:
        yield made


@pytest.fixture(scope="module")
def replicas(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    """Two Dispatchers over one database, whose loops run only when a test calls them."""
    objects = tmp_path_factory.mktemp("objects")
    with ExitStack() as stack:
        dsns = stack.enter_context(copied(templates))
        running = [stack.enter_context(live(secrets, dsns, objects)) for _ in range(2)]
        yield [stack.enter_context(bench(one)) for one in running]


# Services on threads of a test process log to standard error, and not into the output of its commands.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

# A test process builds the commands of `trace` once, and not for each command that it runs.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(scope="module")
def sinks(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[SinkSetup]:
    """A Dispatcher and a sink with databases of their own, for the tests of one file."""
    with running_sink(templates, secrets, tmp_path_factory.mktemp("objects")) as setup:
        yield setup


@pytest.fixture(scope="session")
def anvil_stack(tmp_path_factory: pytest.TempPathFactory) -> Generator["AnvilStack"]:
    """A whole stack on a real node, for `tests/chain` and `tests/browser`. The browser's test is first."""
    from support.services.anvil_stack import running_anvil_stack  # not in every test process

    with running_anvil_stack(tmp_path_factory.mktemp("anvil") / "home") as made:
        yield made


# Test modules stay until the end: the garbage collector need not look at their objects.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """If something keeps this process from ending, such as a thread of a test, show all threads and exit with 1.

    Not in a process of pytest-xdist: it waits for the others, for as long as they have tests.
    """
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(120, exit=True, file=2)


# JVMs of tests are short-lived: the optimising compiler would cost more than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: order_key(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    config.option.loadscopereorder = False  # the groups with the most tests are not the longest
    return GroupScheduling(config, log)
