"""What the user asks of one start of the stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """What the user asked of this start; ports and RPC endpoints are remembered."""

    rpc_urls: Sequence[str] = ()
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: int = 1
