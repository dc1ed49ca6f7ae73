"""Methods that control a development chain, with the prefix `devchain_` because nodes lack them."""

from collections.abc import Mapping
from typing import Any

from trace_etl.devtools.devchain.chain.blocks import FINALITY_DEPTH
from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc import params
from trace_etl.devtools.devchain.rpc.errors import InvalidParams
from trace_etl.devtools.devchain.rpc.methods import Method, hex_json

_MAX_MINED = 100_000


def admin_methods(chain: DevChain) -> Mapping[str, Method]:
    """Return `devchain_mine {n}`, which returns the new head, and `devchain_reorg {depth}`, which
    returns the number of the first replaced block."""

    def mine(raw: Any) -> bytes:
        chain.mine(params.count(raw, "n", _MAX_MINED))
        return hex_json(chain.head)

    def reorg(raw: Any) -> bytes:
        depth = params.count(raw, "depth", FINALITY_DEPTH)
        if depth > chain.head:
            raise InvalidParams(f"invalid argument 0: depth {depth} would replace the genesis")
        return hex_json(chain.reorg(depth))

    return {"devchain_mine": mine, "devchain_reorg": reorg}
