"""config.json: what a stack remembers between starts: its ports and its RPC endpoints."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import BadSetting, PortTaken
from trace_etl.lite.processes.ports import free_port, holder, is_free

PORT_NAMES = ("api", "internal", "query", "scheduler", "postgres")
_POOL = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)=(?P<url>.+)")


@dataclass(frozen=True)
class Port:
    """One listening port, and whether the user insisted on it."""

    number: int
    by_user: bool = False


@dataclass(frozen=True)
class Configuration:
    """The content of config.json."""

    ports: Mapping[str, Port] = field(default_factory=dict[str, Port])
    rpc_pools: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


def read(path: Path) -> Configuration:
    """What was remembered; nothing at a first start. Raises BadSetting if the file is damaged."""
    if not path.exists():
        return Configuration()
    try:
        content = cast(dict[str, Any], json.loads(path.read_text()))
        ports = {name: Port(p["port"], p["by_user"]) for name, p in content["ports"].items()}
        return Configuration(ports, content["rpc_pools"])
    except (ValueError, KeyError, TypeError, AttributeError) as damaged:
        raise BadSetting(f"{path} is damaged ({damaged!r})", f"repair or delete {path}") from None


def write(path: Path, configuration: Configuration) -> None:
    """Remember for the next start."""
    ports = configuration.ports.items()
    content = {
        "version": 1,
        "ports": {name: {"port": p.number, "by_user": p.by_user} for name, p in ports},
        "rpc_pools": {name: list(urls) for name, urls in configuration.rpc_pools.items()},
    }
    private_files.write(path, json.dumps(content, indent=2) + "\n")


def settle_ports(known: Mapping[str, Port], wished: Mapping[str, int]) -> dict[str, Port]:
    """The ports of this start: the user's, else the remembered, else free ones.

    Raises PortTaken when another program has a port that the user chose.
    """
    wanted = {name: _wanted(known.get(name), wished.get(name)) for name in PORT_NAMES}
    settled: dict[str, Port] = {}
    # The user's first: a remembered port makes way for them, not they for it.
    for name, port in sorted(wanted.items(), key=lambda item: not (item[1] and item[1].by_user)):
        taken = frozenset(port.number for port in settled.values())
        settled[name] = _settle(name, port, taken)
    return settled


def _wanted(known: Port | None, wished: int | None) -> Port | None:
    if wished == 0:
        return None
    return known if wished is None else Port(wished, by_user=True)


def _settle(name: str, port: Port | None, taken: frozenset[int]) -> Port:
    if port is not None and port.number not in taken and is_free(port.number):
        return port
    if port is None or not port.by_user:
        return Port(free_port(taken))
    by = "another part of this stack" if port.number in taken else holder(port.number)
    raise PortTaken(
        f"port {port.number} ({name}) is taken by {by}",
        f"stop that program, or choose another port: trace up --{name}-port PORT (0: any free one)",
    )


def parse_rpc_urls(words: Sequence[str]) -> dict[str, list[str]]:
    """Pools from `URL` (pool `default`) and `name=URL` words. Raises BadSetting."""
    pools: dict[str, list[str]] = {}
    for word in words:
        named = _POOL.fullmatch(word)
        name, url = (named["name"], named["url"]) if named else ("default", word)
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise BadSetting(
                f"--rpc-url: {word!r} is not an http or https address",
                "write --rpc-url http://HOST:PORT, or --rpc-url NAME=http://HOST:PORT",
            )
        pools.setdefault(name, []).append(url)
    return pools
