"""Random numbers of a block from SHAKE-256: the same on every machine and Python version."""

from hashlib import shake_256
from struct import Struct
from typing import NamedTuple

_HEAD = Struct(">4H32s32s")
_SLOT = Struct(">7HIQ32s32s")


class BlockDraw(NamedTuple):
    """The random numbers of a block as a whole."""

    crowd: int
    emptiness: int
    builder: int
    fee: int
    state_root: bytes
    mix_hash: bytes


class TransactionDraw(NamedTuple):
    """The random numbers of one transaction."""

    kind: int
    sender: int
    receiver: int
    asset: int
    shape: int
    gas: int
    tip: int
    amount: int
    noise: int
    r: bytes
    s: bytes


def draw(seed: int, number: int, fork: int, slots: int) -> tuple[BlockDraw, list[TransactionDraw]]:
    """Draw all random numbers of one block on one fork."""
    label = f"trace-devchain/{seed}/body/{number}/{fork}".encode()
    entropy = shake_256(label).digest(_HEAD.size + slots * _SLOT.size)
    rest = memoryview(entropy)[_HEAD.size :]
    return BlockDraw._make(_HEAD.unpack_from(entropy)), [
        TransactionDraw._make(s) for s in _SLOT.iter_unpack(rest)
    ]
