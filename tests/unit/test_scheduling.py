"""The distribution of tests over test processes, in a run of its own."""

import os
import subprocess
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
# Only the plugins of this test: neither those that are installed nor those that the environment names.
_ENVIRONMENT = {
    "PYTHONPATH": str(_TESTS),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",
}
_CONFTEST = """
from support.scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
_GROUP = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_in_a_group(number):
    with open("ran", "a") as ran:
        ran.write(f"{number} ")
    if number == 3:
        os._exit(1)
"""
_OTHERS = """
import pytest

@pytest.mark.parametrize("number", range(5))
def test_alone(number):
    pass
"""


def test_a_run_goes_on_after_a_test_process_died(tmp_path: Path) -> None:
    files = {"conftest.py": _CONFTEST, "tests/aws/test_group.py": _GROUP, "test_o.py": _OTHERS}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2"],
        cwd=tmp_path,
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 1, process.stdout
    assert "1 failed, 10 passed" in process.stdout
    assert "test_in_a_group[3]" in process.stdout
    assert sorted((tmp_path / "ran").read_text().split()) == list("012345")  # each once
