"""One browser, and running services with data for every page, for all tests of the console."""

from collections.abc import Generator

import pytest
from playwright.sync_api import Browser

from support.services.browsing import Visit, World, fill, open_browser, open_services, visit
from support.services.dispatcher import Secrets
from support.services.postgres import Templates


@pytest.fixture(scope="session")
def world(
    secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[World]:
    with open_services(secrets, templates, tmp_path_factory.mktemp("objects")) as made:
        fill(made)
        yield made


# Playwright's event loop runs in this thread until the browser closes: no other module may see it.
@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def admin_window(browser: Browser, world: World) -> Generator[Visit]:
    with visit(browser, world.url, world.token()) as made:
        yield made


@pytest.fixture
def admin(admin_window: Visit, world: World) -> Generator[Visit]:
    """The window of an admin. Tests share it, because opening one takes as long as most tests."""
    try:
        yield admin_window
        admin_window.check()
    finally:
        admin_window.reset(world.token())


@pytest.fixture
def reader(browser: Browser, world: World) -> Generator[Visit]:
    with visit(browser, world.url, world.token("rita")) as made:
        yield made
