"""Passwords of the Postgres roles, made at run time, kept in a libpq password file."""

import fcntl
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from trace_etl.lite.credentials import private_files
from trace_etl.lite.processes.ports import LOOPBACK


def read(passfile: Path) -> dict[str, str]:
    """Every role's password; empty when there is no file yet."""
    if not passfile.exists():
        return {}
    # token_urlsafe yields neither ':' nor '\', so no field needs libpq's escapes.
    lines = [line.split(":") for line in passfile.read_text().splitlines() if line]
    return {fields[3]: fields[4] for fields in lines}


def ensure(passfile: Path, roles: Iterable[str]) -> dict[str, str]:
    """Add a new password for each role that has none; return them all."""
    with _locked(passfile):
        known = read(passfile)
        missing = [role for role in roles if role not in known]
        if missing:
            known |= {role: secrets.token_urlsafe(24) for role in missing}
            lines = [f"{LOOPBACK}:*:*:{role}:{password}\n" for role, password in known.items()]
            private_files.write(passfile, "".join(lines))
        return known


@contextmanager
def _locked(passfile: Path) -> Generator[None]:
    descriptor = os.open(passfile.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
