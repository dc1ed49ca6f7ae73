"""The content of a block: a pure function of seed, number and fork, independent of its parent."""

from typing import NamedTuple

from trace_etl.devtools.devchain.chain.actions import GWEI, make_transaction
from trace_etl.devtools.devchain.chain.draws import BlockDraw, TransactionDraw, draw
from trace_etl.devtools.devchain.chain.transaction import Transaction, TransactionOutcome
from trace_etl.devtools.devchain.chain.world import World

_ONE_IN_32 = 1 << 11
_NONCES_PER_BLOCK = 1_024


class Body(NamedTuple):
    """A block's content, before it has a parent."""

    number: int
    fork: int
    miner: bytes
    base_fee: int
    state_root: bytes
    mix_hash: bytes
    transactions: list[Transaction]
    outcomes: list[TransactionOutcome]


class BodyWriter:
    """Generates the block bodies of one chain."""

    def __init__(self, *, seed: int, chain_id: int, txs_per_block: int) -> None:
        self._world = World(seed)
        self._chain_id = chain_id
        self._mean = txs_per_block
        self._spread = txs_per_block // 2

    def write(self, number: int, fork: int) -> Body:
        """Generate the body of a block on a fork (0 is the main chain)."""
        head, slots = self._draw_numbers(number, fork)
        transactions: list[Transaction] = []
        outcomes: list[TransactionOutcome] = []
        for index, slot in enumerate(slots[: self._count_transactions(number, head)]):
            # Nonces grow for every sender, with gaps: there is no state between blocks.
            nonce = number * _NONCES_PER_BLOCK + index
            transaction, outcome = make_transaction(self._world, self._chain_id, slot, nonce)
            transactions.append(transaction)
            outcomes.append(outcome)
        miner = self._world.builders[self._world.rank_builder(head.builder)]
        base_fee = 8 * GWEI + head.fee * 65_536
        roots = (head.state_root, head.mix_hash)
        return Body(number, fork, miner, base_fee, *roots, transactions, outcomes)

    def _draw_numbers(self, number: int, fork: int) -> tuple[BlockDraw, list[TransactionDraw]]:
        """Draw the random numbers. On a fork every second transaction is the same as on the main
        chain, because a real reorganisation keeps some transactions."""
        reach = self._mean + self._spread
        head, slots = draw(self._world.seed, number, fork, reach)
        if fork:
            slots[1::2] = draw(self._world.seed, number, 0, reach)[1][1::2]
        return head, slots

    def _count_transactions(self, number: int, head: BlockDraw) -> int:
        """Return 0.5 to 1.5 times the mean; 0 for the genesis and for one block in 32."""
        if number == 0 or head.emptiness < _ONE_IN_32:
            return 0
        return self._mean - self._spread + head.crowd % (2 * self._spread + 1)
