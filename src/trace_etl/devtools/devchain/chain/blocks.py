"""A block as JSON bytes, ready to be pasted into answers, and where such blocks come from."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

FINALITY_DEPTH = 64


class LogJson(NamedTuple):
    """One log, with what filters look at."""

    address: str
    topics: tuple[str, ...]
    json: bytes


class BlockJson(NamedTuple):
    """One block: its fields without the closing brace, transactions, receipts and logs apart."""

    number: int
    fields: bytes
    transaction_hashes: tuple[str, ...]
    transactions: list[bytes]
    receipts: list[bytes]
    logs: list[LogJson]

    def full(self) -> bytes:
        """The block with whole transactions."""
        return b'%b,"transactions":[%b]}' % (self.fields, b",".join(self.transactions))

    def light(self) -> bytes:
        """The block with the hashes of its transactions."""
        hashes = ",".join(f'"{item}"' for item in self.transaction_hashes)
        return b'%b,"transactions":[%b]}' % (self.fields, hashes.encode())

    def all_receipts(self) -> bytes:
        """The receipts of the block, in order."""
        return b"[%b]" % b",".join(self.receipts)

    def weight(self) -> int:
        """About how many bytes it takes to keep."""
        parts: tuple[Sequence[bytes], ...] = (
            self.transactions,
            self.receipts,
            [log.json for log in self.logs],
        )
        return len(self.fields) + sum(len(item) for part in parts for item in part)


class Unsealed(Exception):
    """A block at or below the head that has not been worked out yet: wait for it and ask again."""

    def __init__(self, number: int) -> None:
        super().__init__(f"block {number} is not sealed yet")
        self.number = number


class BlockSource(Protocol):
    """A chain that can be read: one that is made up, or one that was recorded.

    Hashes are lower-case hex with 0x. Every read may raise Unsealed.
    """

    @property
    def chain_id(self) -> int: ...

    @property
    def head(self) -> int: ...

    def block(self, number: int) -> BlockJson | None:
        """The canonical block of that number."""
        ...

    def block_by_hash(self, block_hash: str) -> BlockJson | None:
        """A block by its hash, canonical or replaced."""
        ...

    def find_transaction(self, transaction_hash: str) -> tuple[BlockJson, int] | None:
        """A canonical transaction: its block, and its position in it."""
        ...
