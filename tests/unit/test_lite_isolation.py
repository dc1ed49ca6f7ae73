"""The paths that the services of a stack may use."""

import shutil
import tempfile
from pathlib import Path

import pytest

from trace_etl import landlock
from trace_etl.lite import isolation
from trace_etl.lite.errors import BadSetting
from trace_etl.lite.home import Home
from trace_etl.spark.session import scratch


def test_a_readable_path_that_contains_the_home_does_not_open_the_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "project" / "data" / "home")
    home.open()
    module = tmp_path / "project" / "module.py"
    module.write_text("")
    (home.path / "of_the_user").mkdir()
    paths = f"{tmp_path}:{home.secrets}"
    for variable in ("PYTHONPATH", "TRACE_READ_PATHS"):
        access = isolation.shared_access({variable: paths}, home.private_paths)
        readable = [Path(path) for path in access.read if Path(path).is_relative_to(tmp_path)]
        assert sorted(readable) == [home.path / "of_the_user", module]


def test_the_temporary_directory_of_a_killed_supervisor_is_removed(tmp_path: Path) -> None:
    home = Home(tmp_path / "a-long-name-for-a-home-directory")
    home.open()
    killed = tmp_path / "left"
    killed.mkdir()
    (home.run / "temporary").symlink_to(killed)
    with home.temporary_directory() as made:
        assert not killed.exists() and made.is_dir() and len(str(made)) < 40
    assert not made.exists()
    with home.temporary_directory() as made:
        home.remove()
        assert not made.exists() and not home.path.exists()


@pytest.mark.parametrize("length", [5, 12, 20, 60])
def test_sockets_of_an_operator_host_fit_into_its_temporary_directory(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may write nowhere else, so its sockets cannot lie in another directory."""
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    home = Home(path / ("h" * max(1, length - len(str(path)))))
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        home.open()
        with home.temporary_directory() as made:
            of_host = made / "worker" / "host-12345678"
            of_host.mkdir(parents=True)
            monkeypatch.setattr(tempfile, "tempdir", str(of_host))
            assert scratch._make_short_directory().parent == of_host
    finally:
        shutil.rmtree(path)


def test_an_unknown_isolation_is_reported() -> None:
    assert not isolation.is_enforced({"TRACE_ISOLATION": "off"})
    with pytest.raises(BadSetting, match="TRACE_ISOLATION: unknown value 'no'") as refused:
        isolation.is_enforced({"TRACE_ISOLATION": "no"})
    assert "auto or off" in refused.value.remedy


def test_a_stack_without_isolation_names_the_reason() -> None:
    reason = "TRACE_ISOLATION=off" if landlock.version() else "no Landlock"
    assert "not separated from each other" in isolation.explain_missing()
    assert reason in isolation.explain_missing()
