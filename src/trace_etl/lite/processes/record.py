"""run/stack.json: the processes of the supervisor, for `trace status` and for finding orphans."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from trace_etl.lite.credentials import private_files

State = Literal["waiting", "starting", "ready", "restarting", "stopped"]


@dataclass
class ServiceRecord:
    """The state of one process, as its supervisor knows it."""

    name: str
    where: str = ""
    state: State = "waiting"
    pid: int | None = None
    created: float | None = None
    since: str | None = None
    restarts: int = 0
    last_exit: int | None = None
    isolation: str = "none"
    warning: str | None = None


def write(path: Path, services: Sequence[ServiceRecord]) -> None:
    private_files.write(path, json.dumps([asdict(service) for service in services], indent=1))


def read(path: Path) -> list[ServiceRecord]:
    """Read the processes of the current or last run; empty if there is no readable record."""
    known = {field.name for field in fields(ServiceRecord)}
    try:
        entries = cast(list[dict[str, Any]], json.loads(path.read_text()))
        return [ServiceRecord(**{k: entry[k] for k in known & entry.keys()}) for entry in entries]
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return []
