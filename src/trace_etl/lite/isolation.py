"""The files that each service may use. Landlock enforces this if the kernel has it.

A service reads the system, its Python and its own files. It does not see the rest of the machine:
the home directory of the user, other stacks, or the credentials of other services.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trace_etl
from trace_etl import landlock
from trace_etl.lite.errors import BadSetting

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store"),
    *("/proc", "/sys", "/var/lib/ca-certificates"),
)
# Not the whole of /etc and /dev: root could read password hashes, host keys and raw disks there.
_CONFIGURATION = (
    *("alternatives", "ca-certificates", "crypto-policies", "gai.conf", "group", "host.conf"),
    *("hostname", "hosts", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload"),
    *("localtime", "machine-id", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki"),
    *("protocols", "resolv.conf", "services", "ssl", "timezone"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "tty", "fd")
_PATH_VARIABLES = (
    *("PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "TRACE_READ_PATHS"),
)


@dataclass(frozen=True)
class Access:
    """The paths that a service may read and write. A writable path is readable, too."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def add(self, *, read: Iterable[Path] = (), write: Iterable[Path] = ()) -> "Access":
        """Return this access with more paths."""
        return Access((*self.read, *map(str, read)), (*self.write, *map(str, write)))


def is_enforced(environment: Mapping[str, str]) -> bool:
    """Return whether services are restricted. Raises BadSetting."""
    chosen = environment.get("TRACE_ISOLATION", "auto")
    if chosen not in ("auto", "off"):
        raise BadSetting(
            f"TRACE_ISOLATION: unknown value {chosen!r}", "set it to auto or off, or unset it"
        )
    return chosen == "auto" and landlock.version() > 0


def explain_missing() -> str:
    """Say why the services of a running stack are not restricted, and what follows from it."""
    reason = "it was started with TRACE_ISOLATION=off"
    if landlock.version() == 0:
        reason = "this kernel has no Landlock (Linux 5.19 or newer, with `landlock` enabled)"
    return (
        f"The services of this stack are not separated from each other: {reason}. A service with"
        " isolation `none` can read the credentials of all others."
    )


def shared_access(environment: Mapping[str, str], private: Sequence[Path]) -> Access:
    """Return the access that all services have: the system and Python, without the private paths."""
    read = {
        *map(Path, _SYSTEM),
        *(Path("/etc", name) for name in _CONFIGURATION),
        *_list_python_paths(),
        *(Path(path) for name in _PATH_VARIABLES for path in _split(environment.get(name, ""))),
    }
    hidden = [path.resolve() for path in private]
    allowed = {str(path) for given in read for path in _exclude_hidden(given.resolve(), hidden)}
    devices = tuple(f"/dev/{name}" for name in _DEVICES)
    return Access(tuple(sorted(allowed)), devices)


def _list_python_paths() -> set[Path]:
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    package = Path(trace_etl.__file__).parent
    return {
        package,
        Path(sys.executable).resolve().parent,
        *map(Path, prefixes | set(_split(*sys.path))),
    }


def _split(*values: str) -> list[str]:
    return [path for value in values for path in value.split(os.pathsep) if path]


def _exclude_hidden(path: Path, hidden: Sequence[Path]) -> list[Path]:
    """Return the path; if it contains hidden paths, everything in it except these."""
    if any(path.is_relative_to(secret) for secret in hidden):
        return []
    if not any(secret.is_relative_to(path) for secret in hidden):
        return [path]
    if not os.access(path, os.R_OK):
        return []
    entries = (entry for entry in path.iterdir() if not entry.is_symlink())
    return [kept for entry in entries for kept in _exclude_hidden(entry, hidden)]
