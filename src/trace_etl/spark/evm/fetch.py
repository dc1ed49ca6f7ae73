"""Ranges of blocks from a node, fetched ahead in batches, checked before anybody sees them."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock, local
from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.spark.errors import ChainMismatch, RpcRefused
from trace_etl.spark.evm import shapes
from trace_etl.spark.evm.answers import RpcCall, UnsupportedMethod
from trace_etl.spark.evm.checks import (
    check_links,
    check_logs,
    check_numbers,
    check_receipts,
    check_silence,
    check_traces,
)
from trace_etl.spark.evm.client import RpcClient
from trace_etl.spark.evm.columns import counts, integers
from trace_etl.spark.evm.tables import BlockChunk

_Array = Any  # pyarrow ships no types
_FIRST_BATCH = 10
_TRIES_OF_A_RANGE = (
    2  # of eth_getLogs: nodes word "too much" in many ways, so any refusal halves it
)
_WANTED_BYTES = 4_000_000  # an answer this large hides the round trip and still parses quickly


@dataclass(frozen=True)
class RpcSource:
    """Where to read and how hard: endpoints, blocks per batch at most, requests at a time."""

    urls: tuple[str, ...]
    batch: int = 50
    concurrency: int = 3
    timeout: float = 30.0
    tries: int = 5
    initial_delay: float = 0.2
    spread: bool = True
    """Ask all endpoints at once; at the tip, where they may differ, one after another."""


class BatchSizer:
    """How many blocks the next batch asks for: what fits a good answer, fewer after trouble."""

    def __init__(self, most: int) -> None:
        self._most = self._allowed = most
        self._size = min(most, _FIRST_BATCH)
        self._lock = Lock()

    @property
    def size(self) -> int:
        return self._size

    def record(self, blocks: int, bytes_read: int, troubles: int) -> None:
        """Learn from a batch."""
        with self._lock:
            if troubles:
                self._allowed = max(1, self._size // 2)
            else:
                self._allowed = min(self._most, self._allowed * 2)
            fitting = _WANTED_BYTES * blocks // max(bytes_read, 1)
            self._size = max(1, min(self._allowed, fitting))


class RangeReader:
    """Reads ranges of blocks with several requests under way, in order. Used in a `with`."""

    def __init__(self, source: RpcSource, tables: Sequence[str]) -> None:
        self._source = source
        self._wants_transactions = "transactions" in tables
        self._wants_logs = "logs" in tables
        self._wants_traces = "traces" in tables
        self._shape = shapes.block(
            transactions=self._wants_transactions,
            hashes=self._wants_traces,
            withdrawals="withdrawals" in tables,
        )
        self._pace = BatchSizer(source.batch)
        self._pool = ThreadPoolExecutor(source.concurrency, "evm-fetch")
        self._here = local()
        self._clients: list[RpcClient] = []
        self._has_block_receipts = True

    def __enter__(self) -> "RangeReader":
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop what is under way, also in the middle of an answer, and hang up."""
        for client in tuple(self._clients):
            client.interrupt()
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def chain_id(self) -> int:
        """What chain the pool serves."""
        return int(self.call(RpcCall("eth_chainId", ())), 16)

    def call(self, call: RpcCall) -> Any:
        """The result of one call, from the caller's thread."""
        return self._client.call(call)

    def chunks(self, start: int, end: int) -> Iterator[BlockChunk]:
        """Every block from `start` to `end`, in order, each linked to the one before."""
        waiting: deque[Future[BlockChunk]] = deque()
        parent: str | None = None
        try:
            while start <= end or waiting:
                while start <= end and len(waiting) < self._source.concurrency:
                    stop = min(end, start + self._pace.size - 1)
                    waiting.append(self._pool.submit(self._fetch, start, stop))
                    start = stop + 1
                chunk = waiting.popleft().result()
                check_links(chunk.blocks, parent)
                parent = chunk.blocks.field("hash")[-1].as_py()
                yield chunk
        finally:
            for future in waiting:  # the reader lost interest
                future.cancel()

    @property
    def _client(self) -> RpcClient:
        """This thread's own: connections are not shared."""
        if not hasattr(self._here, "client"):
            source = self._source
            client = RpcClient(
                source.urls,
                timeout=source.timeout,
                tries=source.tries,
                initial_delay=source.initial_delay,
                first=len(self._clients) if source.spread else 0,
            )
            self._here.client = client
            self._clients.append(client)
        return self._here.client

    def _fetch(self, start: int, end: int) -> BlockChunk:
        client = self._client
        before = client.bytes_read, client.troubles
        chunk = self._agreed(client, range(start, end + 1))
        self._pace.record(
            end - start + 1, client.bytes_read - before[0], client.troubles - before[1]
        )
        return chunk

    def _agreed(self, client: RpcClient, numbers: range) -> BlockChunk:
        """What one endpoint says without contradicting itself; the last one's error if none."""
        for others in reversed(range(len(self._source.urls))):
            try:
                with _named_mismatch(client, numbers[0], numbers[-1]):
                    return self._told(client, numbers)
            except ChainMismatch:
                if not others:
                    raise
                client.move_on()
        raise AssertionError("there is at least one endpoint")

    def _told(self, client: RpcClient, numbers: range) -> BlockChunk:
        read = self._full_blocks if self._wants_transactions else self._headers
        chunk = read(client, numbers)
        return self._with_traces(client, numbers, chunk) if self._wants_traces else chunk

    def _full_blocks(self, client: RpcClient, numbers: range) -> BlockChunk:
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        blocks = client.columns(calls, self._shape)
        check_numbers(blocks, numbers)
        transactions = blocks.field("transactions")
        wanted = counts(transactions)
        receipts, told = self._receipts(client, numbers, transactions.flatten(), wanted)
        check_receipts(blocks, wanted, receipts, told)
        logs = receipts.field("logs")
        starts = np.concatenate([[0], np.cumsum(counts(logs))])
        edges = starts[np.concatenate([[0], np.cumsum(wanted)])]
        check_logs(blocks, logs.flatten(), np.diff(edges))
        return BlockChunk(blocks, transactions.flatten(), receipts, logs.flatten())

    def _receipts(
        self, client: RpcClient, numbers: range, transactions: _Array, wanted: Any
    ) -> tuple[_Array, Any]:
        """The receipts of all blocks in a row, and how many each block has."""
        if self._has_block_receipts:
            calls = [RpcCall("eth_getBlockReceipts", (hex(number),)) for number in numbers]
            try:
                lists = client.columns(calls, shapes.RECEIPTS)
                return lists.flatten(), counts(lists)
            except UnsupportedMethod:
                self._has_block_receipts = False
        hashes = transactions.field("hash").to_pylist()
        calls = [RpcCall("eth_getTransactionReceipt", (name,)) for name in hashes]
        return client.columns(calls, shapes.RECEIPT), wanted

    def _with_traces(self, client: RpcClient, numbers: range, chunk: BlockChunk) -> BlockChunk:
        calls = [RpcCall("trace_block", (hex(number),)) for number in numbers]
        try:
            lists = client.columns(calls, shapes.TRACES)
        except UnsupportedMethod as error:
            raise RpcRefused(f"{error}: the node offers no traces") from error
        check_traces(chunk.blocks, lists.flatten(), counts(lists))
        return replace(chunk, traces=lists.flatten())

    def _headers(self, client: RpcClient, numbers: range) -> BlockChunk:
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        blocks = client.columns(calls, self._shape)
        check_numbers(blocks, numbers)
        nothing = pa.array([], shapes.LOG)
        if not self._wants_logs:
            return BlockChunk(blocks, nothing, nothing, nothing)
        logs, per_block = _sorted_by_position(self._logs(client, numbers), numbers)
        check_logs(blocks, logs, per_block)
        check_silence(blocks, per_block)
        return BlockChunk(blocks, nothing, nothing, logs)

    def _logs(self, client: RpcClient, numbers: range) -> _Array:
        """The logs of a range, in halves if it holds more than the node gives at once."""
        span = {"fromBlock": hex(numbers[0]), "toBlock": hex(numbers[-1])}
        calls = [RpcCall("eth_getLogs", (span,))]
        if len(numbers) == 1:
            return client.columns(calls, shapes.LOGS).flatten()
        try:
            return client.columns(calls, shapes.LOGS, tries=_TRIES_OF_A_RANGE).flatten()
        except RpcRefused:
            middle = len(numbers) // 2
            halves = numbers[:middle], numbers[middle:]
            return pa.concat_arrays([self._logs(client, half) for half in halves])


def _sorted_by_position(logs: _Array, numbers: range) -> tuple[_Array, Any]:
    """Logs by block and index, and how many each block has. Raises ChainMismatch."""
    blocks = np.asarray(integers(logs.field("blockNumber")))
    outside = np.flatnonzero((blocks < numbers[0]) | (blocks > numbers[-1]))
    if len(outside):
        raise ChainMismatch(
            f"eth_getLogs of blocks {numbers[0]} to {numbers[-1]} told a log of block "
            f"{blocks[outside[0]]}"
        )
    order = np.lexsort((np.asarray(integers(logs.field("logIndex"))), blocks))
    per_block = np.bincount(blocks - numbers[0], minlength=len(numbers))
    return logs.take(pa.array(order)), per_block


@contextmanager
def _named_mismatch(client: RpcClient, start: int, end: int) -> Generator[None]:
    """Say which endpoint it was that contradicted itself, or answered in a strange shape."""
    try:
        yield
    except ChainMismatch as error:
        raise ChainMismatch(f"{error}, at {client.label}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ChainMismatch(
            f"blocks {start} to {end} at {client.label}: an answer of unknown shape ({error})"
        ) from error
