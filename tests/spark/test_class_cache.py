"""The JVM class cache: found by Java version, created once, and ignored when it is broken."""

import subprocess
import sys
from pathlib import Path

import pytest

from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.session import jvm
from trace_etl.spark.session.classic_engine import ClassicEngine

NO_CACHE = "needs Java 25 or newer, and `trace prepare`, which `make test` runs first"


@pytest.fixture
def new_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment without a cache."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def make_java_home(directory: Path, version: str) -> Path:
    directory.mkdir()
    (directory / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return directory


def flags(home: Path, *given: str) -> list[str]:
    line = jvm.build_command(home, memory="1g", scratch=Path("/nowhere"), flags=given)
    return [word for word in line if word.startswith("-XX:AOT")]


def test_an_existing_cache_is_used(new_environment: Path) -> None:
    home = make_java_home(new_environment / "make_java_home", "25.0.2")
    assert flags(home) == []
    cache = jvm.class_cache(home)
    assert cache is not None and cache.is_relative_to(new_environment)
    cache.parent.mkdir(parents=True)
    cache.touch()
    assert flags(home) == [f"-XX:AOTCache={cache}"]
    recording = "-XX:AOTMode=record"
    assert flags(home, recording) == [recording]


def test_each_java_version_has_its_own_cache_and_old_versions_have_none(
    new_environment: Path,
) -> None:
    caches = [
        jvm.class_cache(make_java_home(new_environment / version, version))
        for version in ("25.0.2", "26.0.1")
    ]
    assert None not in caches and len(set(caches)) == 2
    assert jvm.class_cache(make_java_home(new_environment / "21", "21.0.4")) is None


def test_a_java_with_a_broken_cache_says_so_and_starts_without_it(new_environment: Path) -> None:
    home = jvm.wheel_java_home()
    cache = jvm.class_cache(home)
    if cache is None:
        pytest.skip(NO_CACHE)
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"not a cache")
    command = jvm.build_command(home, memory="1g", scratch=new_environment, main=("-version",))
    assert f"-XX:AOTCache={cache}" in command
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "[aot]" in done.stdout and "Runtime Environment" in done.stderr


def test_the_prepared_cache_is_used_without_warnings(runner: SparkRunner) -> None:
    cache = jvm.class_cache(jvm.wheel_java_home())
    if cache is None or not cache.is_file():
        pytest.skip(NO_CACHE)
    engine = runner.session.engine
    assert isinstance(engine, ClassicEngine) and engine.jvm is not None
    arguments = engine.jvm.process.args
    assert isinstance(arguments, list) and f"-XX:AOTCache={cache}" in arguments
    assert "Unable to map" not in engine.jvm.log.read_text()
