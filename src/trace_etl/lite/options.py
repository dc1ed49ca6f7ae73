"""Options of `trace up`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """Options of one start. Ports, RPC endpoints and the object store are saved for the next start."""

    rpc_urls: Sequence[str] = ()
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: int = 1
    objects_url: str | None = None
