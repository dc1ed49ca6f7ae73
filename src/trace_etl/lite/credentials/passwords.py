"""Passwords of the Postgres roles, generated and stored in a libpq password file."""

import fcntl
import os
import secrets
from collections.abc import Generator, Iterable
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
            lines = [f"{LOOPBACK}:*:*:{role}:{password}\n" for role, password in known.items()]
            private_files.write(passfile, "".join(lines))
        return known


@contextmanager
def _lock_directory(passfile: Path) -> Generator[None]:
    descriptor = os.open(passfile.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
