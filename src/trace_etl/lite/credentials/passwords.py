"""Passwords of the Postgres roles, generated and stored in a libpq password file."""

import fcntl
import os
import secrets
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from trace_etl.lite.credentials import private_files
from trace_etl.lite.processes.ports import LOOPBACK


def read(passfile: Path) -> dict[str, str]:
    """Read the password of every role; empty if the file does not exist."""
    if not passfile.exists():
        return {}
    # token_urlsafe yields neither ':' nor '\', so no field needs libpq's escapes.
    lines = [line.split(":") for line in passfile.read_text().splitlines() if line]
    return {fields[3]: fields[4] for fields in lines}


def ensure(passfile: Path, roles: Iterable[str]) -> dict[str, str]:
    """Generate a password for each role without one; return all passwords."""
    with _lock_directory(passfile):
        known = read(passfile)
        missing = [role for role in roles if role not in known]
        if missing:
            known |= {role: secrets.token_urlsafe(24) for role in missing}
            _write(passfile, known)
        return known


def share(passfile: Path, copy: Path, roles: Iterable[str]) -> None:
    """Write a password file with some roles of `passfile`, for the service that uses these roles."""
    known = read(passfile)
    private_files.make_directory(copy.parent)
    _write(copy, {role: known[role] for role in roles})


def _write(passfile: Path, passwords: Mapping[str, str]) -> None:
    lines = [f"{LOOPBACK}:*:*:{role}:{password}\n" for role, password in passwords.items()]
    private_files.write(passfile, "".join(lines))


@contextmanager
def _lock_directory(passfile: Path) -> Generator[None]:
    descriptor = os.open(passfile.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
