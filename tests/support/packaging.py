"""Install packages of operators into a directory, as an installer would: modules and metadata."""

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

_PACKAGES = Path(__file__).with_name("packages")


def install_example(source: Path, target: Path) -> None:
    """Install the package of a directory with a `pyproject.toml`."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    module = project["name"].replace("-", "_")
    shutil.copytree(source / module, target / module)
    points = project["entry-points"]["trace_etl.operators"]
    write_metadata(target, project["name"], project["version"], points)


def install_test_operators(target: Path) -> None:
    """Install the operators that only tests use."""
    shutil.copytree(_PACKAGES, target, dirs_exist_ok=True)
    names = ("loud", "stubborn", "talkative")
    points = {name: f"trace_test_operators:{name.upper()}" for name in names}
    write_metadata(target, "trace-test-operators", "1.0", points)


def write_metadata(target: Path, name: str, version: str, points: Mapping[str, str]) -> None:
    """Write what importlib.metadata reads of an installed package."""
    metadata = target / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (metadata / "METADATA").write_text(text)
    lines = [f"{point} = {value}" for point, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[trace_etl.operators]", *lines, ""]))
