"""A chain that grows and reorganises while it is served."""

from threading import Lock
from typing import Any

from support.chain.chain_rows import expected
from trace_etl.devtools.devchain import DevChain
from trace_etl.devtools.devchain.rpc.server import RunningServer


class GrowingChain:
    """A served chain, and a local copy with the same changes, to compute expected rows from."""

    def __init__(self, server: RunningServer, copy: DevChain) -> None:
        self._server, self.copy = server, copy
        self.url = server.url
        self._lock = Lock()

    def mine(self, blocks: int) -> None:
        self._server.mine(blocks)
        self.copy.mine(blocks)

    def reorg(self, depth: int) -> None:
        with self._lock:
            self._server.reorg(depth)
            self.copy.reorg(depth)

    def rows(self, start: int = 0) -> dict[str, list[dict[str, Any]]]:
        return expected(self.copy, start, self.copy.head)


def new_chain(seed: int = 7, initial: int = 90, **options: Any) -> DevChain:
    return DevChain(seed, 1000, initial=initial, txs_per_block=2, **options)
