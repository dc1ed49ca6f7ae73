"""The read methods of an Ethereum node, and `devchain_` methods that control a development chain."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from trace_etl import __version__
from trace_etl.devtools.devchain.chain.blocks import FINALITY_DEPTH, BlockJson, BlockSource
from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc import log_filter, params
from trace_etl.devtools.devchain.rpc.errors import InvalidParams, RpcError, RpcLimitExceeded

Method: TypeAlias = Callable[[Any], bytes]

MAX_LOG_BLOCKS = 10_000
MAX_LOGS = 20_000
SAFE_DEPTH = 32
_NULL = b"null"
_MAX_MINED = 100_000


def hex_json(number: int) -> bytes:
    """Encode a number as a hexadecimal JSON string."""
    return b'"0x%x"' % number


class NodeMethods:
    """The methods that clients can call, each as a function from params to JSON bytes."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source

    def table(self) -> Mapping[str, Method]:
        """Return all methods by name."""
        client = f'"trace-devchain/v{__version__}"'.encode()
        return {
            "eth_chainId": self._make_constant_method(hex_json(self._source.chain_id)),
            "net_version": self._make_constant_method(b'"%d"' % self._source.chain_id),
            "web3_clientVersion": self._make_constant_method(client),
            "eth_syncing": self._make_constant_method(b"false"),
            "eth_blockNumber": self.block_number,
            "eth_getBlockByNumber": self.block_by_number,
            "eth_getBlockByHash": self.block_by_hash,
            "eth_getBlockTransactionCountByNumber": self.transaction_count_by_number,
            "eth_getBlockTransactionCountByHash": self.transaction_count_by_hash,
            "eth_getBlockReceipts": self.block_receipts,
            "eth_getTransactionByHash": self.transaction_by_hash,
            "eth_getTransactionReceipt": self.transaction_receipt,
            "eth_getLogs": self.logs,
        }

    def block_number(self, raw: Any) -> bytes:
        params.positional(raw, 0)
        return hex_json(self._source.head)

    def block_by_number(self, raw: Any) -> bytes:
        """Return a block by number or tag, with transactions or their hashes."""
        tag, full = params.positional(raw, 2)
        return _render_block(self._read_block_at(params.block_tag(tag, 0)), params.flag(full, 1))

    def block_by_hash(self, raw: Any) -> bytes:
        """Return a block by hash, with transactions or their hashes."""
        block_hash, full = params.positional(raw, 2)
        block = self._source.block_by_hash(params.block_hash(block_hash, 0))
        return _render_block(block, params.flag(full, 1))

    def transaction_count_by_number(self, raw: Any) -> bytes:
        """Return the number of transactions of a block."""
        block = self._read_block_at(params.block_tag(params.positional(raw, 1)[0], 0))
        return _NULL if block is None else hex_json(len(block.transactions))

    def transaction_count_by_hash(self, raw: Any) -> bytes:
        """Return the number of transactions of a block."""
        block_hash = params.block_hash(params.positional(raw, 1)[0], 0)
        block = self._source.block_by_hash(block_hash)
        return _NULL if block is None else hex_json(len(block.transactions))

    def block_receipts(self, raw: Any) -> bytes:
        """Return all receipts of a block, by number, tag, hash, or an EIP-1898 object."""
        block = self._find_block(params.positional(raw, 1)[0])
        return _NULL if block is None else block.all_receipts()

    def transaction_by_hash(self, raw: Any) -> bytes:
        """Return a canonical transaction."""
        position = self._find_transaction(raw)
        return _NULL if position is None else position[0].transactions[position[1]]

    def transaction_receipt(self, raw: Any) -> bytes:
        """Return the receipt of a canonical transaction."""
        position = self._find_transaction(raw)
        return _NULL if position is None else position[0].receipts[position[1]]

    def logs(self, raw: Any) -> bytes:
        """Return logs by range or block hash, address and topics."""
        filter_ = log_filter.parse(params.positional(raw, 1)[0])
        logs: list[bytes] = []
        for block in self._select_blocks(filter_):
            logs += filter_.select(block.logs)
            if len(logs) > MAX_LOGS:
                raise RpcLimitExceeded(f"query returned more than {MAX_LOGS} results")
        return b"[%b]" % b",".join(logs)

    def _select_blocks(self, filter_: log_filter.LogFilter) -> list[BlockJson]:
        if filter_.block_hash is not None:
            block = self._source.block_by_hash(filter_.block_hash)
            if block is None:
                raise RpcError("unknown block")
            return [block]
        return self._read_range(self._resolve_tag(filter_.first), self._resolve_tag(filter_.last))

    def _read_range(self, first: int, last: int) -> list[BlockJson]:
        if last < first:
            raise InvalidParams("invalid block range params")
        if last > self._source.head:
            raise InvalidParams("block range extends beyond current head block")
        if last - first >= MAX_LOG_BLOCKS:
            raise InvalidParams(f"query exceeds max block range {MAX_LOG_BLOCKS}")
        self._source.block(last)  # raises Unsealed once for the whole range
        blocks = map(self._source.block, range(first, last + 1))
        return [block for block in blocks if block is not None]

    def _find_block(self, reference: Any) -> BlockJson | None:
        if isinstance(reference, dict):
            fields = cast("dict[str, Any]", reference)
            if ("blockHash" in fields) == ("blockNumber" in fields):
                raise InvalidParams("invalid argument 0: want one of blockHash and blockNumber")
            reference = fields.get("blockHash", fields.get("blockNumber"))
        if params.is_hash(reference):
            return self._source.block_by_hash(params.block_hash(reference, 0))
        return self._read_block_at(params.block_tag(reference, 0))

    def _find_transaction(self, raw: Any) -> tuple[BlockJson, int] | None:
        transaction_hash = params.block_hash(params.positional(raw, 1)[0], 0)
        return self._source.find_transaction(transaction_hash)

    def _read_block_at(self, tag: int | str) -> BlockJson | None:
        return self._source.block(self._resolve_tag(tag))

    def _resolve_tag(self, tag: int | str) -> int:
        """Convert a tag to a number. The chain has no pending block, so `pending` is the latest."""
        if isinstance(tag, int):
            return tag
        depth = self._source.finality_depth
        behind = {"finalized": depth, "safe": min(SAFE_DEPTH, depth), "earliest": self._source.head}
        return max(self._source.head - behind.get(tag, 0), 0)

    @staticmethod
    def _make_constant_method(answer: bytes) -> Method:
        def method(raw: Any) -> bytes:
            params.positional(raw, 0)
            return answer

        return method


def _render_block(block: BlockJson | None, full: bool) -> bytes:
    if block is None:
        return _NULL
    return block.full() if full else block.light()


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
