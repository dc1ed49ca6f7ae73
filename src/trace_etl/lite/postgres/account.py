"""The account Postgres runs under: ours, or an unprivileged one when we are root."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from trace_etl.lite.errors import NoAccount


@dataclass(frozen=True)
class Account:
    """A user id, and its main group, that a process may run under."""

    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether this is the account we already run under."""
        return self.uid == os.geteuid()

    @property
    def user(self) -> int | None:
        """subprocess's `user`: none when no change is needed."""
        return None if self.is_ours else self.uid

    @property
    def group(self) -> int | None:
        """subprocess's `group`."""
        return None if self.is_ours else self.gid

    @property
    def extra_groups(self) -> list[int] | None:
        """subprocess's `extra_groups`: another account keeps none of ours."""
        return None if self.is_ours else []


def postgres_account() -> Account:
    """Our own account; as root, which Postgres refuses, the first unprivileged one that works."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for candidate in _unprivileged():
        if _can_run_as(candidate):
            return candidate
    raise NoAccount(
        "Postgres refuses to run as root, and this system lets root become no other user",
        "run `trace up` as an ordinary user, or allow setuid (CAP_SETUID, CAP_SETGID)",
    )


def _unprivileged() -> Iterator[Account]:
    # initdb looks its user up, so only users with an entry will do.
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
