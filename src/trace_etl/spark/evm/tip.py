"""Read the tip of a chain: new blocks, and the fork point after a reorganisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.chain.tables import ColumnChoice
from trace_etl.spark.errors import (
    ChainMismatch,
    FinalityBroken,
    OperatorError,
    RpcRefused,
    RpcUnreachable,
)
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.fetch import (
    DEFAULT_RULES,
    OnReject,
    RangeReader,
    RpcSource,
    ignore_rejected,
    list_chains,
    require_one_chain,
)
from trace_etl.spark.evm.finality import find_final_block
from trace_etl.spark.evm.head_watch import HeadClaim, HeadWatch, OnSetAside, ignore_set_aside
from trace_etl.spark.evm.recent_blocks import BlockRef, RecentBlocks
from trace_etl.spark.evm.rpc.answers import RpcCall
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE

_log = structlog.stdlib.get_logger()
_INITIAL_FORK_SEARCH = 16
_LARGEST = (1 << 63) - 1
_COMPARE_TIMEOUT = 10.0
_NOT_A_BLOCK = (
    "eth_getBlockByNumber of {}: the node's answer is not a block; check the RPC endpoint"
)


def head_block(urls: tuple[str, ...]) -> int:
    """Return the number of the newest block. Raises RpcUnreachable or RpcRefused."""
    with RangeReader(RpcSource(urls), ("blocks",)) as reader:
        return int(reader.call(RpcCall("eth_blockNumber", ())), 16)


@dataclass(frozen=True)
class Advance:
    """The next blocks to write. They replace every held block from the first of them on."""

    chunks: Sequence[BlockChunk]
    blocks: Sequence[BlockRef]
    head: BlockRef
    orphaned: int
    """Number of held blocks that are no longer part of the chain."""

    @property
    def first(self) -> int:
        return self.blocks[0].number


class TipReader:
    """Follows one chain. Use it in a `with` block; do not share it between threads."""

    def __init__(
        self,
        source: RpcSource,
        tables: Sequence[str],
        rules: VerifyRules = DEFAULT_RULES,
        columns: ColumnChoice = "standard",
        on_reject: OnReject = ignore_rejected,
        on_set_aside: OnSetAside = ignore_set_aside,
    ) -> None:
        self._tables, self._rules = tables, rules
        self._columns: ColumnChoice = columns
        self._on_reject, self._on_set_aside = on_reject, on_set_aside
        self._has_finality = True
        self._open(replace(source, spread=False))

    def _open(self, source: RpcSource) -> None:
        self._source = source
        self._blocks = RangeReader(
            source, self._tables, self._rules, self._columns, self._on_reject
        )
        self._headers = RangeReader(source, ("blocks",), self._rules)
        self._singles: dict[str, TipReader] = {}
        self._watch = HeadWatch(source.urls, source.compare_seconds, self._on_set_aside)

    def __enter__(self) -> "TipReader":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for reader in self._singles.values():
            reader.__exit__()  # aborts the requests that the watch waits for
        self._watch.close()
        self._blocks.__exit__()
        self._headers.__exit__()

    @property
    def urls(self) -> tuple[str, ...]:
        """The endpoints that are used."""
        return self._source.urls

    def chain_id(self, expected: int | None = None) -> int:
        """The id of the chain that the endpoints serve. Raises DifferentChains.

        If some serve the expected chain, the reader uses those that serve another one no more.
        """
        served = list_chains(self._source)
        wrong = [one for one in served if one.chain_id != expected]
        if expected is None or len(wrong) in (0, len(served)):
            return require_one_chain(served)
        for one in wrong:
            _log.warning(
                "endpoint_set_aside",
                endpoint=one.label,
                reason="other_chain",
                chain_id=one.chain_id,
                expected=expected,
            )
            self._on_set_aside("other_chain")
        unwanted = {one.url for one in wrong}
        self.__exit__()
        self._open(
            replace(self._source, urls=tuple(url for url in self.urls if url not in unwanted))
        )
        return expected

    def compare_endpoints(
        self, recent: RecentBlocks, *, start: int, final: int, limit: int
    ) -> None:
        """Compare the heads of all endpoints now and then, in the background.

        An endpoint that lacks blocks which another one has is set aside, and so is one whose blocks
        up to its head do not verify.
        """
        if len(self.urls) == 1:
            return
        readers = {url: self._make_single_reader(url) for url in self.urls}
        self._watch.poll(
            lambda url: readers[url].read_claim(recent, start=start, final=final, limit=limit)
        )

    def read_claim(
        self, recent: RecentBlocks, *, start: int, final: int, limit: int
    ) -> HeadClaim | None:
        """Read the head of the only endpoint and the next blocks; None if it does not answer."""
        [url], label = self.urls, self._headers.label
        held = recent.last.number if recent.last else start - 1
        head = None
        try:
            head = self.head()
            advance = self.advance(recent, start=start, final=final, limit=limit, head=head)
        except (RpcUnreachable, RpcRefused):
            return None  # the pool handles endpoints that do not answer
        except (ChainMismatch, FinalityBroken) as error:
            return HeadClaim(url, label, head.number if head else held, None, str(error))
        last = advance.blocks[-1].number if advance else min(head.number, held)
        return HeadClaim(url, label, head.number, last)

    def find_start(self) -> int:
        """The number of the newest block that an endpoint has, whatever heads others report."""
        if len(self.urls) == 1:
            return self.head().number
        heads: list[tuple[int, TipReader]] = []
        errors: list[OperatorError] = []
        for url in [url for url in self.urls if not SET_ASIDE.includes(url)] or self.urls:
            try:
                heads.append(
                    (self._make_single_reader(url).head().number, self._make_single_reader(url))
                )
            except OperatorError as error:
                errors.append(error)
        for number, reader in sorted(heads, key=lambda pair: -pair[0]):
            try:
                list(reader._headers.chunks(number, number))
                return number
            except OperatorError as error:
                errors.append(error)
        raise errors[-1]

    def _make_single_reader(self, url: str) -> "TipReader":
        """A reader of this endpoint alone."""
        if url not in self._singles:
            source = self._source
            self._singles[url] = TipReader(
                replace(
                    source,
                    urls=(url,),
                    concurrency=1,
                    timeout=min(source.timeout, _COMPARE_TIMEOUT),
                ),
                ("blocks",),
                self._rules,
                on_reject=self._on_reject,
            )
        return self._singles[url]

    def head(self) -> BlockRef:
        """The newest block."""
        return self._read_tagged_block("latest")

    def finalized(self) -> BlockRef | None:
        """The newest final block; None if the node has no `finalized` tag."""
        if not self._has_finality:
            return None
        try:
            return self._read_tagged_block("finalized")
        except (RpcRefused, ChainMismatch):
            self._has_finality = False  # a chain without finality
            return None

    def confirm_final(self, number: int) -> int:
        """Return the lowest finalized block of all endpoints, at most `number`.

        One endpoint that calls its head final must not end the search for reorganisations.
        """
        if len(self._source.urls) == 1:
            return number
        return min(number, find_final_block(self._source, "finalized").number)

    def advance(
        self,
        recent: RecentBlocks,
        *,
        start: int,
        final: int,
        limit: int,
        head: BlockRef | None = None,
    ) -> Advance | None:
        """Read at most `limit` blocks after the held ones; None when there is nothing new.

        With no held blocks, begin at `start`. Blocks up to `final` must not be replaced: raises
        FinalityBroken. Raises ChainMismatch when the chain changes during the read: call again.
        """
        head = head or self.head()
        last = recent.last
        if last is None:
            return self._read_blocks(start, None, head, limit, 0) if head.number >= start else None
        if recent.at(head.number) == head or head.number < max(recent.first, final):
            return None  # no new block, or an endpoint that lags behind
        if head.number > last.number:
            new = self._read_blocks(last.number + 1, last, head, limit, 0, allow_fork=True)
            if new is not None:
                return new
        fork = self._find_fork(recent, min(head.number, last.number), final)
        orphaned = last.number - (fork.number if fork else recent.first - 1)
        first = fork.number + 1 if fork else recent.first
        if first > head.number:
            return None  # an endpoint that lags behind reported a block that is already held
        # Replace the whole orphaned range in one step, even if it is longer than `limit`.
        return self._read_blocks(first, fork, head, max(limit, orphaned), orphaned)

    def _read_blocks(
        self,
        first: int,
        parent: BlockRef | None,
        head: BlockRef,
        limit: int,
        orphaned: int,
        *,
        allow_fork: bool = False,
    ) -> Advance | None:
        """Read blocks from `first`, the child of `parent`.

        If block `first` has another parent: return None with `allow_fork`, else ChainMismatch.
        """
        chunks: list[BlockChunk] = []
        for chunk in self._blocks.chunks(first, min(head.number, first + limit - 1)):
            if not chunks and parent is not None:
                parent_hash = _parse_hash(chunk.blocks.field("parentHash")[0])
                if parent_hash != parent.hash and allow_fork:
                    return None
                if parent_hash != parent.hash:
                    raise ChainMismatch(
                        f"block {first} has parent 0x{parent_hash.hex()}, expected block {parent}: "
                        "the chain changed during the read; try again"
                    )
            chunks.append(chunk)
        return Advance(chunks, list(_list_blocks(chunks)), head, orphaned)

    def _find_fork(self, recent: RecentBlocks, top: int, final: int) -> BlockRef | None:
        """Find the last block that the node and `recent` share; None if they share none."""
        low, count = top + 1, _INITIAL_FORK_SEARCH
        bottom = max(recent.first, final)
        while low > bottom:
            high, low = low - 1, max(bottom, low - count)
            chunks = list(self._headers.chunks(low, high))
            common = [block for block in _list_blocks(chunks) if recent.at(block.number) == block]
            if common:
                return common[-1]
            count *= 2
        if final >= recent.first:
            raise FinalityBroken(
                f"block {recent.at(final)} was final, but it is not on the chain that the node "
                "serves now; check that the RPC endpoint serves the right chain"
            )
        return None

    def _read_tagged_block(self, tag: str) -> BlockRef:
        block = self._headers.call(RpcCall("eth_getBlockByNumber", (tag, False)))
        try:
            number, seconds = (int(block[name], 16) for name in ("number", "timestamp"))
            found = BlockRef(number, bytes.fromhex(block["hash"][2:]), seconds)
        except (TypeError, KeyError, ValueError) as error:
            raise ChainMismatch(_NOT_A_BLOCK.format(tag)) from error
        if not (0 <= number <= _LARGEST and 0 <= seconds <= _LARGEST and len(found.hash) == 32):
            raise ChainMismatch(_NOT_A_BLOCK.format(tag))
        return found


def _list_blocks(chunks: Sequence[BlockChunk]) -> Iterator[BlockRef]:
    for chunk in chunks:
        fields = [chunk.blocks.field(name) for name in ("number", "hash", "timestamp")]
        for number, block_hash, seconds in zip(*fields, strict=True):
            yield BlockRef(
                int(number.as_py(), 16), _parse_hash(block_hash), int(seconds.as_py(), 16)
            )


def _parse_hash(text: Any) -> bytes:
    return bytes.fromhex(text.as_py()[2:])
