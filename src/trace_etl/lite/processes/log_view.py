"""The log view: merge the logs of all processes into readable lines."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

_HIDDEN_KEYS = frozenset({"timestamp", "level", "process", "event", "exception"})
_POSTGRES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC (?P<level>[A-Z]+): +(?P<text>.*)")
_POSTGRES_LEVELS = {"WARNING": "warning", "ERROR": "warning", "FATAL": "warning", "PANIC": "error"}
_ROTATE_AT = 32 * 1024 * 1024


@dataclass(frozen=True)
class Line:
    """One readable log line."""

    at: datetime
    service: str
    level: str
    text: str

    def __str__(self) -> str:
        return f"{self.at.astimezone():%H:%M:%S} {self.service:<10}  {self.text}"


class EventLog:
    """The log of the supervisor, in the same format as the logs of its children."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: after a failed write on a full disk, the next event must not repeat it.
        self._file = path.open("ab", buffering=0)

    def event(self, event: str, level: str = "info", **values: object) -> None:
        """Write one event; to standard error if the disk is full. Does not fail if both are."""
        entry = {"event": event, "process": "supervisor", "level": level, **values}
        entry["timestamp"] = datetime.now(UTC).isoformat()
        line = json.dumps(entry, default=str)
        try:
            self._file.write(f"{line}\n".encode())
        except OSError:
            with suppress(OSError):  # a stack in the background has its standard error in this file
                print(line, file=sys.stderr)  # noqa: T201

    def close(self) -> None:
        self._file.close()


@dataclass
class LogFollower:
    """Reads the lines appended to the logs of a directory from now on."""

    directory: Path
    _positions: dict[Path, int] = field(default_factory=dict[Path, int], init=False)

    def __post_init__(self) -> None:
        self._positions = {path: path.stat().st_size for path in self._list_files()}

    def lines(self) -> list[Line]:
        """Read the lines since the last call, ordered by time."""
        fresh = [line for path in self._list_files() for line in self._read(path)]
        return sorted(fresh, key=lambda line: line.at)

    def _list_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def _read(self, path: Path) -> list[Line]:
        start = self._positions.get(path, 0)
        if path.stat().st_size < start:
            start = 0  # the log was rotated
        with path.open("rb") as file:
            file.seek(start)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._positions[path] = start + len(whole)
        texts = whole.decode(errors="replace").splitlines()
        return [line for text in texts if (line := parse(path.stem, text))]


def parse(service: str, text: str) -> Line | None:
    """Parse a log line; None for a line that the log view does not show."""
    if text.startswith("{"):
        try:
            return _parse_event(service, json.loads(text))
        except (ValueError, KeyError, TypeError):
            return Line(datetime.now(UTC), service, "info", text)
    if service == "postgres":
        return _parse_postgres(text)
    return Line(datetime.now(UTC), service, "info", text) if text.strip() else None


def _parse_postgres(text: str) -> Line | None:
    native = _POSTGRES.match(text)
    level = _POSTGRES_LEVELS.get(native["level"]) if native else None
    # "… is starting up", "… is shutting down": Postgres rejected a connection during start or stop.
    if native is None or level is None or native["text"].startswith("the database system is"):
        return None
    return Line(datetime.now(UTC), "postgres", level, native["text"])


def rotate(directory: Path) -> None:
    """Move full logs to `.log.1`. Processes open their logs for appending, so they continue."""
    for path in directory.glob("*.log"):
        if path.stat().st_size > _ROTATE_AT:
            with path.open("rb") as full, path.with_suffix(".log.1").open("wb") as kept:
                for chunk in iter(lambda: full.read(1 << 20), b""):
                    kept.write(chunk)
            with path.open("r+b") as full:
                full.truncate(0)


def tail(path: Path, *, since: int = 0, count: int = 12) -> str:
    """Return the last lines of a log after position `since`, for an error message."""
    if not path.exists():
        return ""
    lines = path.read_bytes()[since:][-8192:].decode(errors="replace").splitlines()[-count:]
    return "\n".join(_strip_prefix(path.stem, line) for line in lines)


def _strip_prefix(service: str, text: str) -> str:
    line = parse(service, text)
    return line.text if line else text


def _parse_event(service: str, entry: dict[str, Any]) -> Line:
    pairs = [f"{key}={_format_value(entry[key])}" for key in entry if key not in _HIDDEN_KEYS]
    text = " ".join([str(entry["event"]), *pairs])
    if entry.get("exception"):
        text += "".join(f"\n    {line}" for line in str(entry["exception"]).splitlines())
    at = entry.get("timestamp")
    when = datetime.fromisoformat(at) if at else datetime.now(UTC)
    return Line(when, service, cast(str, entry.get("level", "info")), text)


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if " " in value or not value else value
    return json.dumps(value, default=str)
