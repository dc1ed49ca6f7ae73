"""config.json: the ports, RPC endpoints and object store that a stack keeps between starts."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from trace_etl.dag.runtimes import BadRuntimes, load_runtimes
from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import BadSetting, PortTaken
from trace_etl.lite.processes.ports import free_port, holder, is_free
from trace_etl.secret_store import REFERENCE

PORT_NAMES = ("api", "internal", "query", "scheduler", "console", "postgres")
_POOL = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)=(?P<url>.+)")


@dataclass(frozen=True)
class Port:
    """A listening port, and whether the user chose it."""

    number: int
    by_user: bool = False


@dataclass(frozen=True)
class Configuration:
    """The content of config.json."""

    ports: Mapping[str, Port] = field(default_factory=dict[str, Port])
    rpc_pools: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    objects_url: str | None = None
    """The object store. None: a directory of the home."""


def read(path: Path) -> Configuration:
    """Read the file; empty before the first start. Raises BadSetting if it is damaged."""
    if not path.exists():
        return Configuration()
    try:
        content = cast(dict[str, Any], json.loads(path.read_text()))
        ports = {name: Port(p["port"], p["by_user"]) for name, p in content["ports"].items()}
        return Configuration(ports, content["rpc_pools"], content.get("objects_url"))
    except (ValueError, KeyError, TypeError, AttributeError) as damaged:
        raise BadSetting(f"{path} is damaged ({damaged!r})", f"repair or delete {path}") from None


def write(path: Path, configuration: Configuration) -> None:
    """Save the configuration for the next start."""
    ports = configuration.ports.items()
    content = {
        "version": 1,
        "ports": {name: {"port": p.number, "by_user": p.by_user} for name, p in ports},
        "rpc_pools": {name: list(urls) for name, urls in configuration.rpc_pools.items()},
        "objects_url": configuration.objects_url,
    }
    private_files.write(path, json.dumps(content, indent=2) + "\n")


def check_runtimes(path: Path) -> None:
    """Check the file with the runtimes of the stack, if there is one. Raises BadSetting."""
    try:
        load_runtimes(path if path.exists() else None)
    except BadRuntimes as error:
        raise BadSetting(str(error), f"correct or delete {path}") from error


def choose_ports(known: Mapping[str, Port], requested: Mapping[str, int]) -> dict[str, Port]:
    """Choose the ports of this start: requested, else saved, else free ones.

    Raises PortTaken if another program uses a port that the user chose.
    """
    candidates = {
        name: _pick_candidate(known.get(name), requested.get(name)) for name in PORT_NAMES
    }
    chosen: dict[str, Port] = {}
    # Ports chosen by the user come first: a saved port must not block them.
    for name, port in sorted(
        candidates.items(), key=lambda item: not (item[1] and item[1].by_user)
    ):
        taken = frozenset(port.number for port in chosen.values())
        chosen[name] = _check_or_replace(name, port, taken)
    return chosen


def _pick_candidate(known: Port | None, requested: int | None) -> Port | None:
    if requested == 0:
        return None
    return known if requested is None else Port(requested, by_user=True)


def _check_or_replace(name: str, port: Port | None, taken: frozenset[int]) -> Port:
    if port is not None and port.number not in taken and is_free(port.number):
        return port
    if port is None or not port.by_user:
        return Port(free_port(taken))
    by = "another process of this stack" if port.number in taken else holder(port.number)
    raise PortTaken(
        f"port {port.number} ({name}) is taken by {by}",
        f"stop that program, or choose another port: trace up --{name}-port PORT (0: any free one)",
    )


def parse_postgres_uid(environment: Mapping[str, str]) -> int | None:
    """Read TRACE_POSTGRES_UID, the user id of Postgres when the stack runs as root. Raises BadSetting."""
    value = environment.get("TRACE_POSTGRES_UID")
    if value is None:
        return None
    if not value.isdecimal() or not 0 < int(value) < 2**32 - 1:
        raise BadSetting(
            f"TRACE_POSTGRES_UID: {value!r} is not the id of an ordinary user",
            "set it to a positive number, or unset it",
        )
    return int(value)


def parse_rpc_urls(values: Sequence[str]) -> dict[str, list[str]]:
    """Parse `URL` (pool `default`) and `name=URL` values. Raises BadSetting."""
    pools: dict[str, list[str]] = {}
    for value in values:
        named = _POOL.fullmatch(value)
        name, url = (named["name"], named["url"]) if named else ("default", value)
        if REFERENCE.fullmatch(url):
            pools.setdefault(name, []).append(url)
            continue
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise BadSetting(
                f"--rpc-url: {value!r} is not an http or https address",
                "write --rpc-url http://HOST:PORT, or --rpc-url NAME=http://HOST:PORT",
            )
        pools.setdefault(name, []).append(url)
    return pools
