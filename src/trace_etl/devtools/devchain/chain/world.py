"""The accounts, tokens, pools and builders of a development chain, derived from the seed."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import shake_256
from itertools import accumulate

ACCOUNTS = 2_000
_DECIMALS = (18, 6, 18, 8, 6, 18, 18, 2)
_POOLS = ((0, 1), (0, 3), (1, 2), (4, 5))
_BUILDERS = 5
_COLLECTIONS = 3
_TABLE_BITS = 12


@dataclass(frozen=True, slots=True)
class Party:
    """An address, and its form as an indexed event argument."""

    address: bytes
    topic: bytes


@dataclass(frozen=True, slots=True)
class Token:
    """An ERC-20 contract."""

    address: bytes
    decimals: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A constant-product pair of two tokens."""

    party: Party
    token_in: Token
    token_out: Token


class WeightedChoice:
    """Maps a 16-bit random number to an index; index i has the weight 1/(i+1).

    The weights are integers because a table built from floats could differ between machines.
    """

    def __init__(self, count: int) -> None:
        reach = list(accumulate(10**9 // (rank + 1) for rank in range(count)))
        slots = 1 << _TABLE_BITS
        self._table = [bisect_right(reach, reach[-1] * slot // slots) for slot in range(slots)]

    def __call__(self, number: int) -> int:
        return self._table[number >> (16 - _TABLE_BITS)]


class World:
    """Everything that is the same in all blocks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        address = _make_address_function(seed)
        self.accounts = [_make_party(address("account", i)) for i in range(ACCOUNTS)]
        self.tokens = [Token(address("token", i), decimals) for i, decimals in enumerate(_DECIMALS)]
        self.collections = [address("collection", i) for i in range(_COLLECTIONS)]
        self.builders = [address("builder", i) for i in range(_BUILDERS)]
        self.router = _make_party(address("router", 0))
        self.pools = [
            Pool(_make_party(address("pool", i)), self.tokens[left], self.tokens[right])
            for i, (left, right) in enumerate(_POOLS)
        ]
        self.rank_account = WeightedChoice(ACCOUNTS)
        self.rank_token = WeightedChoice(len(self.tokens))
        self.rank_collection = WeightedChoice(len(self.collections))
        self.rank_pool = WeightedChoice(len(self.pools))
        self.rank_builder = WeightedChoice(len(self.builders))


def _make_address_function(seed: int) -> Callable[[str, int], bytes]:
    def make(role: str, index: int) -> bytes:
        return shake_256(f"trace-devchain/{seed}/{role}/{index}".encode()).digest(20)

    return make


def _make_party(address: bytes) -> Party:
    return Party(address, bytes(12) + address)
