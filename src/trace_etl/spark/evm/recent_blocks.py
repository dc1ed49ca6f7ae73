"""The follower's window of recent blocks, which the chain may still replace. Pure: no I/O."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise


@dataclass(frozen=True)
class BlockRef:
    """A block's number and hash."""

    number: int
    hash: bytes
    time: int | None = field(default=None, compare=False)
    """The time in its header; None if the header was not read."""

    def __str__(self) -> str:
        return f"{self.number} (0x{self.hash.hex()})"


@dataclass(frozen=True)
class LinkedBlock:
    """A block and the hash of its parent."""

    block: BlockRef
    parent_hash: bytes

    @property
    def parent(self) -> BlockRef:
        return BlockRef(self.block.number - 1, self.parent_hash)


class RecentBlocks:
    """Consecutive blocks, oldest first."""

    def __init__(self, blocks: Iterable[BlockRef] = ()) -> None:
        self._blocks = list(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockRef]:
        return iter(self._blocks)

    @property
    def last(self) -> BlockRef | None:
        return self._blocks[-1] if self._blocks else None

    @property
    def first(self) -> int:
        """The lowest block number. The window must not be empty."""
        return self._blocks[0].number

    def at(self, number: int) -> BlockRef | None:
        """The block with this number; None if it is outside the window."""
        index = number - self.first if self._blocks else -1
        return self._blocks[index] if 0 <= index < len(self._blocks) else None

    def replace_from(self, blocks: Sequence[BlockRef], *, keep_from: int) -> "RecentBlocks":
        """Replace everything from `blocks[0]` on, and drop blocks older than `keep_from`."""
        kept = [block for block in self._blocks if keep_from <= block.number < blocks[0].number]
        added = [block for block in blocks if block.number >= keep_from]
        return RecentBlocks([*kept, *added] or blocks[-1:])

    def select_new(
        self, links: Sequence[LinkedBlock], *, start: int
    ) -> Sequence[LinkedBlock] | None:
        """Return the blocks of `links` that the window lacks. An empty window begins at `start`.

        Return None if `links` is not a chain, or if no block of the window is its parent.
        """
        if any(child.parent != link.block for link, child in pairwise(links)):
            return None
        unknown = list(dropwhile(lambda link: self.at(link.block.number) == link.block, links))
        if not unknown:
            return unknown
        parent = unknown[0].parent
        if not self._blocks:
            return unknown if parent.number == start - 1 else None
        return unknown if self.at(parent.number) == parent else None
