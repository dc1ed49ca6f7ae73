"""A deterministic Ethereum-like chain behind a real JSON-RPC server, for demos and tests."""

from trace_etl.devtools.devchain.chain.devchain import DevChain, ReorgAt
from trace_etl.devtools.devchain.rpc.server import RunningServer, start_server

__all__ = ["DevChain", "ReorgAt", "RunningServer", "start_server"]
