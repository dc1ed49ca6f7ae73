"""The account of Postgres: the current user; as root, a user id that no other program uses."""

import os
import pwd
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_etl.lite.errors import NoAccount

# Below 65536, so that containers can use it. No distribution assigns these ids.
_OWN_UIDS = range(64200, 64700)
_NAMED_USER = str(Path(__file__).with_name("named_user.py"))


@dataclass(frozen=True)
class Account:
    """A user id and its main group."""

    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether this is the account of the current process."""
        return self.uid == os.geteuid()

    def run(
        self,
        command: Sequence[str],
        *,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        directory: Path = Path("/"),
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this account in a directory and capture its output. Raises OSError.

        The account must own the directory, and needs no access to its parents.
        """
        words = list(command)
        if not self.is_ours and not _has_name(self.uid):
            numbers = [str(number) for number in (self.uid, self.gid, _read_chosen_uid())]
            words = [sys.executable, "-I", "-S", _NAMED_USER, *numbers, *words]
        other = not self.is_ours and _has_name(self.uid)
        return subprocess.run(
            words,
            input=stdin,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            cwd=directory,
            user=self.uid if other else None,
            group=self.gid if other else None,
            extra_groups=[] if other else None,
        )

    def take(self, directory: Path) -> None:
        """Make this account the owner of a directory and everything in it."""
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def postgres_account(directory: Path, uid: int | None = None) -> Account:
    """Return the current account; as root, which Postgres rejects, one of its own for `directory`.

    `uid` chooses the account. Falls back to an existing account where user namespaces are disabled.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    candidates = [Account(uid, uid)] if uid else _list_candidates(directory)
    for candidate in candidates:
        if _can_run_as(candidate):
            return candidate
    raise NoAccount(
        "Postgres refuses to run as root, and root cannot switch to another user on this system",
        "run `trace up` as an ordinary user, or allow setuid (CAP_SETUID, CAP_SETGID)",
    )


def _list_candidates(directory: Path) -> Iterator[Account]:
    first = zlib.crc32(os.fsencode(directory)) % len(_OWN_UIDS)
    ordered = [*_OWN_UIDS[first:], *_OWN_UIDS[:first]]
    own = next(uid for uid in ordered if not _has_name(uid))
    yield Account(own, own)
    entries = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    entries.sort(key=lambda entry: (entry.pw_name != "nobody", -entry.pw_uid))
    for entry in entries:
        yield Account(entry.pw_uid, entry.pw_gid)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _read_chosen_uid() -> int:
    return max(entry.pw_uid for entry in pwd.getpwall())


def _can_run_as(account: Account) -> bool:
    try:
        return account.run(["/bin/true"]).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
