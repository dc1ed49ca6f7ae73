"""A chain that is generated while it is read: its head, its forks, and the sealed blocks."""

from collections import OrderedDict
from dataclasses import dataclass

from trace_etl.devtools.devchain.chain.blocks import FINALITY_DEPTH, BlockJson, Unsealed
from trace_etl.devtools.devchain.chain.body import BodyWriter
from trace_etl.devtools.devchain.chain.render import render
from trace_etl.devtools.devchain.chain.seal import GENESIS_PARENT, SealedBlock, seal

MAX_LENGTH = 10_000_000
MAX_TXS_PER_BLOCK = 200
MAX_SEED = 2**64 - 1
DEFAULT_CHAIN_ID = 31_337
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReorgAt:
    """Replace the last `depth` blocks when the head reaches `block`."""

    block: int
    depth: int = 3


class DevChain:
    """A deterministic chain of blocks 0 to length - 1; `initial` blocks exist from the start.

    Not safe for use from two threads: once a server serves it, mine and reorg through the server.
    """

    def __init__(
        self,
        seed: int = 7,
        length: int = 10_000,
        *,
        initial: int | None = None,
        txs_per_block: int = 4,
        reorg_at: ReorgAt | None = None,
        chain_id: int = DEFAULT_CHAIN_ID,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        first = length if initial is None else initial
        _check_bounds("seed", seed, 0, MAX_SEED)
        _check_bounds("length", length, 1, MAX_LENGTH)
        _check_bounds("initial", first, 1, length)
        _check_bounds("txs_per_block", txs_per_block, 0, MAX_TXS_PER_BLOCK)
        _check_bounds("chain_id", chain_id, 1, MAX_SEED)
        if reorg_at is not None:
            _check_bounds("reorg_at block", reorg_at.block, 1, length - 1)
            _check_bounds("reorg_at depth", reorg_at.depth, 1, min(reorg_at.block, FINALITY_DEPTH))
        self.length = length
        self.chain_id = chain_id
        # A chain that is complete from the start is history: all of it is final.
        self.finality_depth = 0 if initial is None else FINALITY_DEPTH
        self._writer = BodyWriter(seed=seed, chain_id=chain_id, txs_per_block=txs_per_block)
        self._head = 0
        self._reorg_at = reorg_at
        self._forks = 0
        self._fork_of: dict[int, int] = {}  # replaced numbers only; all others are on fork 0
        self._sealed: list[SealedBlock] = []
        self._by_hash: dict[bytes, SealedBlock] = {}
        self._by_transaction: dict[bytes, int] = {}
        self._indexed = 0
        self._rendered = 0
        self._cache = _Cache(cache_bytes)
        self.mine(first - 1)

    @property
    def head(self) -> int:
        """The number of the newest block."""
        return self._head

    @property
    def sealed(self) -> int:
        """The number of blocks, from the genesis, that have been computed."""
        return len(self._sealed)

    def mine(self, blocks: int) -> None:
        """Advance the head, also past `length`; run the planned reorganisation if it is due."""
        self._head += blocks
        plan = self._reorg_at
        if plan is not None and self._head >= plan.block:
            self._reorg_at = None
            self._replace_blocks(plan.block - plan.depth + 1, plan.block)

    def reorg(self, depth: int) -> int:
        """Replace the last blocks and return the first replaced number. Raises ValueError."""
        _check_bounds("depth", depth, 1, min(self._head, FINALITY_DEPTH))
        first = self._head - depth + 1
        self._replace_blocks(first, self._head)
        return first

    def seal_to(self, number: int) -> None:
        """Compute the blocks up to this number, or up to the head."""
        while len(self._sealed) <= number and self.seal_next():
            pass

    def seal_next(self) -> bool:
        """Compute one more block; return False if the head is already sealed."""
        number = len(self._sealed)
        if number > self._head:
            return False
        parent = self._sealed[-1].hash if self._sealed else GENESIS_PARENT
        block = seal(self._writer.write(number, self._fork_of.get(number, 0)), parent)
        self._sealed.append(block)
        self._by_hash[block.hash] = block
        return True

    def render_next(self) -> bool:
        """Render one more sealed block in advance; return False if none is left or the cache is full."""
        if self._rendered >= len(self._sealed) or self._cache.is_full:
            return False
        self._render_block(self._sealed[self._rendered])
        self._rendered += 1
        return True

    def block(self, number: int) -> BlockJson | None:
        """Return the canonical block with this number. Raises Unsealed."""
        if not 0 <= number <= self._head:
            return None
        if number >= len(self._sealed):
            raise Unsealed(number)
        return self._render_block(self._sealed[number])

    def block_by_hash(self, block_hash: str) -> BlockJson | None:
        """Return a block by its hash, also a replaced one, as real nodes do. Raises Unsealed."""
        block = self._by_hash.get(bytes.fromhex(block_hash[2:]))
        if block is None:
            self._require_all()
            return None
        return self._render_block(block)

    def find_transaction(self, transaction_hash: str) -> tuple[BlockJson, int] | None:
        """Return the block and position of a canonical transaction. Raises Unsealed."""
        self._index_transactions()
        key = bytes.fromhex(transaction_hash[2:])
        number = self._by_transaction.get(key)
        if number is None:
            self._require_all()
            return None
        block = self._sealed[number]
        return self._render_block(block), block.transaction_hashes.index(key)

    def _require_all(self) -> None:
        """Raise Unsealed if a block is not sealed: an unknown hash may belong to it."""
        if len(self._sealed) <= self._head:
            raise Unsealed(self._head)

    def _replace_blocks(self, first: int, last: int) -> None:
        """Put blocks first..last on a new fork. Unsealed blocks were never served, so they have no
        replaced version."""
        self._forks += 1
        self._fork_of.update(dict.fromkeys(range(first, last + 1), self._forks))
        if len(self._sealed) > first:
            del self._sealed[first:]
            self._by_transaction.clear()
            self._indexed = 0

    def _index_transactions(self) -> None:
        for number in range(self._indexed, len(self._sealed)):
            hashes = self._sealed[number].transaction_hashes
            self._by_transaction.update(dict.fromkeys(hashes, number))
        self._indexed = len(self._sealed)

    def _render_block(self, block: SealedBlock) -> BlockJson:
        rendered = self._cache.get(block.hash)
        if rendered is None:
            rendered = render(block, self._writer.write(block.header.number, block.fork))
            self._cache.put(block.hash, rendered)
        return rendered


class _Cache:
    """The most recently used rendered blocks, up to a size in bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._weight = 0
        self._blocks: OrderedDict[bytes, tuple[BlockJson, int]] = OrderedDict()

    @property
    def is_full(self) -> bool:
        return self._weight > self._capacity * 9 // 10

    def get(self, block_hash: bytes) -> BlockJson | None:
        entry = self._blocks.get(block_hash)
        if entry is None:
            return None
        self._blocks.move_to_end(block_hash)
        return entry[0]

    def put(self, block_hash: bytes, block: BlockJson) -> None:
        weight = block.weight()
        self._blocks[block_hash] = (block, weight)
        self._weight += weight
        while self._weight > self._capacity and len(self._blocks) > 1:
            self._weight -= self._blocks.popitem(last=False)[1][1]


def _check_bounds(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
