"""A new home and two starts of it at the same time."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from trace_etl.lite.errors import AlreadyRunning, PortTaken
from trace_etl.lite.home import Home
from trace_etl.lite.processes import lock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "new")


def test_a_refused_start_keeps_a_new_home_that_another_start_uses(home: Home) -> None:
    with ExitStack() as other:
        with pytest.raises(AlreadyRunning), home.removed_if_refused():
            home.open()
            other.enter_context(lock.held(home.lock))
            with lock.held(home.lock):
                pass
        assert home.pgpass.parent.is_dir()
        assert lock.is_held(home.lock)


def test_a_refused_start_removes_a_new_home_that_no_other_start_uses(home: Home) -> None:
    with pytest.raises(PortTaken), home.removed_if_refused():
        home.open()
        with lock.held(home.lock):
            raise PortTaken("port 1 is taken", "choose another")
    assert not home.path.exists()
