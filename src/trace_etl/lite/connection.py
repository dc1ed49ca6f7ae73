"""connection.json: the addresses and credentials that local clients use."""

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from trace_etl.lite.credentials import private_files
from trace_etl.lite.home import Home
from trace_etl.lite.processes.ports import LOOPBACK


@dataclass(frozen=True)
class StackConnection:
    """The content of connection.json. Tokens are paths of files."""

    version: int
    home: str
    api_url: str
    internal_url: str
    query_url: str
    ca: str
    user_token: str
    worker_token: str
    supervisor_pid: int
    started_at: str
    console_url: str | None = None
    """Null if the stack has no console."""


def describe(
    home: Home, *, api: int, internal: int, query: int, pid: int, console: int | None = None
) -> StackConnection:
    """Describe the connection of a stack that listens on these ports."""
    return StackConnection(
        version=1,
        home=str(home.path),
        api_url=f"https://{LOOPBACK}:{api}",
        internal_url=f"https://{LOOPBACK}:{internal}",
        query_url=f"https://{LOOPBACK}:{query}",
        ca=str(home.tls / "ca.pem"),
        user_token=str(home.user_token),
        worker_token=str(home.worker_token),
        supervisor_pid=pid,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        # A browser treats the loopback address as secure, and would warn about a private authority.
        console_url=f"http://{LOOPBACK}:{console}" if console else None,
    )


def write(path: Path, connection: StackConnection) -> None:
    private_files.write(path, json.dumps(asdict(connection), indent=2) + "\n")


def read(path: Path) -> StackConnection | None:
    """Read connection.json; None if no stack runs."""
    try:
        content = cast(dict[str, Any], json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    known = {field.name for field in fields(StackConnection)}
    return StackConnection(**{name: value for name, value in content.items() if name in known})
