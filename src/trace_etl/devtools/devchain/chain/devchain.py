"""A chain that is made up as it is read: its head, its forks, and the blocks sealed so far."""

from collections import OrderedDict
from dataclasses import dataclass

from trace_etl.devtools.devchain.chain.blocks import FINALITY_DEPTH, BlockJson, Unsealed
from trace_etl.devtools.devchain.chain.body import Author
from trace_etl.devtools.devchain.chain.render import render
from trace_etl.devtools.devchain.chain.seal import GENESIS_PARENT, SealedBlock, seal

MAX_LENGTH = 10_000_000
MAX_TXS_PER_BLOCK = 200
MAX_SEED = 2**64 - 1
DEFAULT_CHAIN_ID = 31_337
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReorgAt:
    """Replace the last `depth` blocks as soon as the head is `block`."""

    block: int
    depth: int = 3


class DevChain:
    """A deterministic chain of `length` blocks, 0 to length - 1, of which `initial` exist at once.

    Not safe to use from two threads: once it is served, drive it through its server.
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
        _check("seed", seed, 0, MAX_SEED)
        _check("length", length, 1, MAX_LENGTH)
        _check("initial", first, 1, length)
        _check("txs_per_block", txs_per_block, 0, MAX_TXS_PER_BLOCK)
        _check("chain_id", chain_id, 1, MAX_SEED)
        if reorg_at is not None:
            _check("reorg_at block", reorg_at.block, 1, length - 1)
            _check("reorg_at depth", reorg_at.depth, 1, min(reorg_at.block, FINALITY_DEPTH))
        self.length = length
        self.chain_id = chain_id
        self._author = Author(seed=seed, chain_id=chain_id, txs_per_block=txs_per_block)
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
        """How many blocks, from the genesis on, have been worked out."""
        return len(self._sealed)

    def mine(self, blocks: int) -> None:
        """Move the head forward, past `length` too; a planned reorganisation happens on the way."""
        self._head += blocks
        plan = self._reorg_at
        if plan is not None and self._head >= plan.block:
            self._reorg_at = None
            self._replace(plan.block - plan.depth + 1, plan.block)

    def reorg(self, depth: int) -> int:
        """Replace the last blocks; the first replaced number. Raises ValueError if too deep."""
        _check("depth", depth, 1, min(self._head, FINALITY_DEPTH))
        first = self._head - depth + 1
        self._replace(first, self._head)
        return first

    def seal_to(self, number: int) -> None:
        """Work out the blocks up to that number, or up to the head."""
        while len(self._sealed) <= number and self.seal_next():
            pass

    def seal_next(self) -> bool:
        """Work out one more block; false if the head is sealed already."""
        number = len(self._sealed)
        if number > self._head:
            return False
        parent = self._sealed[-1].hash if self._sealed else GENESIS_PARENT
        block = seal(self._author.write(number, self._fork_of.get(number, 0)), parent)
        self._sealed.append(block)
        self._by_hash[block.hash] = block
        return True

    def render_next(self) -> bool:
        """Render one more sealed block ahead of time; false if there is none, or no room."""
        if self._rendered >= len(self._sealed) or self._cache.is_full:
            return False
        self._render(self._sealed[self._rendered])
        self._rendered += 1
        return True

    def block(self, number: int) -> BlockJson | None:
        """The canonical block of that number. Raises Unsealed."""
        if not 0 <= number <= self._head:
            return None
        if number >= len(self._sealed):
            raise Unsealed(number)
        return self._render(self._sealed[number])

    def block_by_hash(self, block_hash: str) -> BlockJson | None:
        """A block by its hash; replaced ones stay readable, as on a real node. Raises Unsealed."""
        block = self._by_hash.get(bytes.fromhex(block_hash[2:]))
        if block is None:
            self._require_all()
            return None
        return self._render(block)

    def find_transaction(self, transaction_hash: str) -> tuple[BlockJson, int] | None:
        """A canonical transaction: its block, and its position in it. Raises Unsealed."""
        self._index_transactions()
        key = bytes.fromhex(transaction_hash[2:])
        number = self._by_transaction.get(key)
        if number is None:
            self._require_all()
            return None
        block = self._sealed[number]
        return self._render(block), block.transaction_hashes.index(key)

    def _require_all(self) -> None:
        """A hash nobody has seen yet may belong to a block that is not sealed."""
        if len(self._sealed) <= self._head:
            raise Unsealed(self._head)

    def _replace(self, first: int, last: int) -> None:
        """Put first..last on a new fork. What was not sealed was never seen, and just changes."""
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

    def _render(self, block: SealedBlock) -> BlockJson:
        rendered = self._cache.get(block.hash)
        if rendered is None:
            rendered = render(block, self._author.write(block.header.number, block.fork))
            self._cache.put(block.hash, rendered)
        return rendered


class _Cache:
    """The blocks rendered last, up to a weight in bytes."""

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


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
