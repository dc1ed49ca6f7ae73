"""The tip of a chain: what is new, and where the node left the chain that we hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_etl.spark.errors import ChainMismatch, FinalityBroken, RpcRefused
from trace_etl.spark.evm.answers import Call, MethodNotFound
from trace_etl.spark.evm.fetch import RangeReader, Source
from trace_etl.spark.evm.recent_blocks import Mark, Trail
from trace_etl.spark.evm.tables import Chunk

_FIRST_LOOK = 16


@dataclass(frozen=True)
class Advance:
    """What to write next: these blocks, in place of everything held from the first of them on."""

    chunks: Sequence[Chunk]
    marks: Sequence[Mark]
    head: Mark
    orphaned: int
    """How many blocks that we held are no longer part of the chain."""

    @property
    def first(self) -> int:
        return self.marks[0].number


class TipReader:
    """Follows one chain. Used in a `with`; not shared between threads."""

    def __init__(self, source: Source, tables: Sequence[str]) -> None:
        source = replace(source, spread=False)
        self._blocks = RangeReader(source, tables)
        self._headers = RangeReader(source, ("blocks",))
        self._tells_finality = True

    def __enter__(self) -> "TipReader":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._blocks.__exit__()
        self._headers.__exit__()

    def chain_id(self) -> int:
        """What chain the pool serves."""
        return self._headers.chain_id()

    def head(self) -> Mark:
        """The newest block."""
        return self._tagged("latest")

    def finalized(self) -> Mark | None:
        """The newest block that will never be replaced; None if the node does not tell."""
        if not self._tells_finality:
            return None
        try:
            return self._tagged("finalized")
        except (RpcRefused, ChainMismatch, MethodNotFound):
            self._tells_finality = False  # chains without finality have no such block
            return None

    def advance(
        self, trail: Trail, *, start: int, final: int, limit: int, head: Mark | None = None
    ) -> Advance | None:
        """The next blocks after those held, at most `limit`; None when there is nothing new.

        An empty trail begins at `start`. Nothing up to `final` may be replaced: raises
        FinalityBroken. Raises ChainMismatch when the chain changes while it is read: ask again.
        """
        head = head or self.head()
        last = trail.last
        if last is None:
            return self._read(start, None, head, limit, 0) if head.number >= start else None
        if trail.at(head.number) == head or head.number < max(trail.first, final):
            return None  # the tip we know, or an endpoint that lags behind it
        if head.number > last.number:
            found = self._read(last.number + 1, last, head, limit, 0, is_tried=True)
            if found is not None:
                return found
        fork = self._fork(trail, min(head.number, last.number), final)
        orphaned = last.number - (fork.number if fork else trail.first - 1)
        first = fork.number + 1 if fork else trail.first
        if first > head.number:
            return None  # an endpoint that lags told of a block that we hold
        # A rewritten range is whole again in one step, if the chain is long enough by now.
        return self._read(first, fork, head, max(limit, orphaned), orphaned)

    def _read(
        self,
        first: int,
        parent: Mark | None,
        head: Mark,
        limit: int,
        orphaned: int,
        *,
        is_tried: bool = False,
    ) -> Advance | None:
        """Blocks from `first` on, on top of `parent`. Only a trial may fail to fit: then None."""
        chunks: list[Chunk] = []
        for chunk in self._blocks.chunks(first, min(head.number, first + limit - 1)):
            if not chunks and parent is not None:
                told = _bytes(chunk.blocks.field("parentHash")[0])
                if told != parent.hash and is_tried:
                    return None
                if told != parent.hash:
                    raise ChainMismatch(
                        f"block {first} is no child of block {parent}: the chain changed again"
                    )
            chunks.append(chunk)
        return Advance(chunks, list(_marks(chunks)), head, orphaned)

    def _fork(self, trail: Trail, top: int, final: int) -> Mark | None:
        """The last block that we and the node have in common; None if all we hold is gone."""
        low, look = top + 1, _FIRST_LOOK
        bottom = max(trail.first, final)
        while low > bottom:
            high, low = low - 1, max(bottom, low - look)
            chunks = list(self._headers.chunks(low, high))
            common = [mark for mark in _marks(chunks) if trail.at(mark.number) == mark]
            if common:
                return common[-1]
            look *= 2
        if final >= trail.first:
            raise FinalityBroken(
                f"block {trail.at(final)} was final, but the chain that the node tells now does "
                "not contain it"
            )
        return None

    def _tagged(self, tag: str) -> Mark:
        block = self._headers.value(Call("eth_getBlockByNumber", (tag, False)))
        try:
            return Mark(int(block["number"], 16), bytes.fromhex(block["hash"][2:]))
        except (TypeError, KeyError, ValueError) as error:
            raise ChainMismatch(f"the {tag} block is of unknown shape") from error


def _marks(chunks: Sequence[Chunk]) -> Iterator[Mark]:
    for chunk in chunks:
        numbers, hashes = chunk.blocks.field("number"), chunk.blocks.field("hash")
        for number, block_hash in zip(numbers, hashes, strict=True):
            yield Mark(int(number.as_py(), 16), _bytes(block_hash))


def _bytes(text: Any) -> bytes:
    return bytes.fromhex(text.as_py()[2:])
