"""The files of a program at the isolation `reduced`, which sees the file system of the host.

Its user cannot enter the directories of the worker. So a private directory has copies of the bundle and the
SDK, and a temporary directory. The sockets stay where they are, behind an inherited descriptor.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_etl.sandbox.bubblewrap import NODE, SOCKETS, Shown
from trace_etl.sandbox.errors import SandboxUnavailable

_TEMPORARY = "/tmp"  # noqa: S108 - what programs call it
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class PrivateView:
    """The places of the files that a program knows by the paths of other isolations."""

    directory: Path
    paths: Mapping[str, str]
    """The path on this host by the path that the program knows."""
    readable: Sequence[str]
    descriptors: Sequence[int]

    @property
    def writable(self) -> list[str]:
        return [self.paths[_TEMPORARY], *_DEVICES]

    def translate(self, word: str) -> str:
        """Return the path on this host of a known path. Every other argument stays unchanged."""
        for known in sorted(self.paths, key=len, reverse=True):
            if word == known or word.startswith(f"{known}/"):
                return self.paths[known] + word.removeprefix(known)
        return word

    def remove(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        shutil.rmtree(self.directory, ignore_errors=True)


def make_view(shown: Sequence[Shown], uid: int) -> PrivateView:
    """Copy the files of a program to a directory that its user can enter. Raises OSError.

    No process of the user may run.
    """
    prefix = f"trace-function-{uid}-"
    for left in Path(_TEMPORARY).glob(f"{prefix}*"):  # left by a worker that was killed
        if left.lstat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=_TEMPORARY))
    directory.chmod(0o755)
    temporary = directory / "tmp"
    temporary.mkdir(mode=0o700)
    os.chown(temporary, uid, uid)
    paths, readable = {_TEMPORARY: str(temporary)}, [str(directory / "files")]
    descriptors: list[int] = []
    for entry in shown:
        if entry.target == SOCKETS:
            descriptors.append(os.open(entry.source, os.O_PATH))
            paths[entry.target] = f"/proc/self/fd/{descriptors[-1]}"
            readable.append(str(entry.source))
        elif entry.target in (NODE, str(entry.source)):
            paths[entry.target] = str(entry.source)
            readable.append(str(entry.source))
        else:
            paths[entry.target] = str(_copy(entry, directory / "files"))
    return PrivateView(directory, paths, readable, descriptors)


def require_reachable(program: str) -> None:
    """Check that every user can enter the directories of a program. Raises SandboxUnavailable."""
    for parent in Path(program).parents:
        if not parent.stat().st_mode & 0o001:
            raise SandboxUnavailable(
                f"the isolation `reduced` runs functions as other users, who cannot enter {parent}",
                f"install {program} where all users can enter, such as /usr or /opt",
            )


def _copy(entry: Shown, root: Path) -> Path:
    target = root / entry.target.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.source.is_dir():
        shutil.copytree(entry.source, target)
    else:
        shutil.copy(entry.source, target)
    above = [
        path for path in target.parents if path.is_relative_to(root)
    ]  # the umask chose their modes
    for path in (target, *target.rglob("*"), *above):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return target
