"""The account of Postgres: the current user, or an unprivileged one if that is root."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from trace_etl.lite.errors import NoAccount


@dataclass(frozen=True)
class Account:
    """A user id and its main group."""

    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether this is the account of the current process."""
        return self.uid == os.geteuid()

    @property
    def user(self) -> int | None:
        """The `user` argument of subprocess; None if no change is needed."""
        return None if self.is_ours else self.uid

    @property
    def group(self) -> int | None:
        """The `group` argument of subprocess."""
        return None if self.is_ours else self.gid

    @property
    def extra_groups(self) -> list[int] | None:
        """The `extra_groups` argument of subprocess: another account gets none of our groups."""
        return None if self.is_ours else []


def postgres_account() -> Account:
    """Return the current account; as root, which Postgres rejects, the first unprivileged one that works."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for candidate in _unprivileged():
        if _can_run_as(candidate):
            return candidate
    raise NoAccount(
        "Postgres refuses to run as root, and root cannot switch to another user on this system",
        "run `trace up` as an ordinary user, or allow setuid (CAP_SETUID, CAP_SETGID)",
    )


def _unprivileged() -> Iterator[Account]:
    # initdb looks up its user, so the user needs an entry.
    entries = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    entries.sort(key=lambda entry: (entry.pw_name != "nobody", -entry.pw_uid))
    for entry in entries:
        yield Account(entry.pw_uid, entry.pw_gid)


def _can_run_as(account: Account) -> bool:
    try:
        subprocess.run(
            ["/bin/true"], check=True, cwd="/", user=account.uid, group=account.gid, extra_groups=[]
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
