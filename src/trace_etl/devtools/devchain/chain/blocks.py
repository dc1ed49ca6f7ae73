"""Blocks as JSON bytes that responses can include, and the interface of a chain."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

FINALITY_DEPTH = 64


class LogJson(NamedTuple):
    """One log as JSON, with the fields that filters compare."""

    address: str
    topics: tuple[str, ...]
    json: bytes


class BlockJson(NamedTuple):
    """One block: its fields without the closing brace, and its transactions, receipts and logs."""

    number: int
    fields: bytes
    transaction_hashes: tuple[str, ...]
    transactions: list[bytes]
    receipts: list[bytes]
    logs: list[LogJson]

    def full(self) -> bytes:
        """Return the block with full transactions."""
        return b'%b,"transactions":[%b]}' % (self.fields, b",".join(self.transactions))

    def light(self) -> bytes:
        """Return the block with transaction hashes."""
        hashes = ",".join(f'"{item}"' for item in self.transaction_hashes)
        return b'%b,"transactions":[%b]}' % (self.fields, hashes.encode())

    def all_receipts(self) -> bytes:
        """Return the receipts of the block, in order."""
        return b"[%b]" % b",".join(self.receipts)

    def weight(self) -> int:
        """Return the approximate size in memory, in bytes."""
        parts: tuple[Sequence[bytes], ...] = (
            self.transactions,
            self.receipts,
            [log.json for log in self.logs],
        )
        return len(self.fields) + sum(len(item) for part in parts for item in part)


class Unsealed(Exception):
    """A block at or below the head is not computed yet: wait for it and retry."""

    def __init__(self, number: int) -> None:
        super().__init__(f"block {number} is not sealed yet")
        self.number = number


class BlockSource(Protocol):
    """A chain that can be read: generated or recorded.

    Hashes are lower-case hex with 0x. Every read may raise Unsealed.
    """

    @property
    def chain_id(self) -> int: ...

    @property
    def head(self) -> int: ...

    @property
    def finality_depth(self) -> int:
        """How far behind the head a block is final."""
        ...

    def block(self, number: int) -> BlockJson | None:
        """Return the canonical block with this number."""
        ...

    def block_by_hash(self, block_hash: str) -> BlockJson | None:
        """Return a block by its hash, canonical or replaced."""
        ...

    def find_transaction(self, transaction_hash: str) -> tuple[BlockJson, int] | None:
        """Return the block of a canonical transaction, and its position in the block."""
        ...
