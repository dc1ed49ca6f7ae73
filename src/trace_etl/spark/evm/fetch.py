"""Fetch ranges of blocks from a node: prefetch in batches, and check before returning them."""

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
    check_empty_blooms,
    check_links,
    check_logs,
    check_numbers,
    check_receipts,
    check_traces,
)
from trace_etl.spark.evm.client import RpcClient
from trace_etl.spark.evm.columns import list_lengths, parse_integers
from trace_etl.spark.evm.tables import BlockChunk

_Array = Any  # pyarrow ships no types
_INITIAL_BATCH = 10
# Tries of eth_getLogs before the range is halved: nodes report "too much" in many ways, so any
# refusal halves it.
_MAX_RANGE_TRIES = 2
_TARGET_BYTES = 4_000_000  # an answer of this size hides the round trip and still parses quickly


@dataclass(frozen=True)
class RpcSource:
    """The endpoints to read from, with limits: blocks per batch and concurrent requests."""

    urls: tuple[str, ...]
    batch: int = 50
    concurrency: int = 3
    timeout: float = 30.0
    tries: int = 5
    initial_delay: float = 0.2
    spread: bool = True
    """Use all endpoints concurrently. False at the tip, where endpoints may differ."""


class BatchSizer:
    """Chooses the number of blocks per batch: toward the target size, fewer after failures."""

    def __init__(self, max_size: int) -> None:
        self._max_size = self._allowed = max_size
        self._size = min(max_size, _INITIAL_BATCH)
        self._lock = Lock()

    @property
    def size(self) -> int:
        return self._size

    def record_batch(self, blocks: int, bytes_read: int, failures: int) -> None:
        """Adapt to the size and failures of a batch."""
        with self._lock:
            if failures:
                self._allowed = max(1, self._size // 2)
            else:
                self._allowed = min(self._max_size, self._allowed * 2)
            fitting = _TARGET_BYTES * blocks // max(bytes_read, 1)
            self._size = max(1, min(self._allowed, fitting))


class RangeReader:
    """Reads ranges of blocks in order, with concurrent requests. Use it in a `with` block."""

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
        self._sizer = BatchSizer(source.batch)
        self._pool = ThreadPoolExecutor(source.concurrency, "evm-fetch")
        self._local = local()
        self._clients: list[RpcClient] = []
        self._has_block_receipts = True

    def __enter__(self) -> "RangeReader":
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Abort requests in progress and close the connections."""
        for client in tuple(self._clients):
            client.interrupt()
        self._pool.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def chain_id(self) -> int:
        """The id of the chain that the endpoints serve."""
        return int(self.call(RpcCall("eth_chainId", ())), 16)

    def call(self, call: RpcCall) -> Any:
        """Make one call in the caller's thread and return its result."""
        return self._client.call(call)

    def chunks(self, start: int, end: int) -> Iterator[BlockChunk]:
        """Yield all blocks from `start` to `end` in order; check that they form a chain."""
        waiting: deque[Future[BlockChunk]] = deque()
        parent: str | None = None
        try:
            while start <= end or waiting:
                while start <= end and len(waiting) < self._source.concurrency:
                    stop = min(end, start + self._sizer.size - 1)
                    waiting.append(self._pool.submit(self._fetch_chunk, start, stop))
                    start = stop + 1
                chunk = waiting.popleft().result()
                check_links(chunk.blocks, parent)
                parent = chunk.blocks.field("hash")[-1].as_py()
                yield chunk
        finally:
            for future in waiting:  # the caller stopped early
                future.cancel()

    @property
    def _client(self) -> RpcClient:
        """The client of the current thread: threads do not share connections."""
        if not hasattr(self._local, "client"):
            source = self._source
            client = RpcClient(
                source.urls,
                timeout=source.timeout,
                tries=source.tries,
                initial_delay=source.initial_delay,
                first=len(self._clients) if source.spread else 0,
            )
            self._local.client = client
            self._clients.append(client)
        return self._local.client

    def _fetch_chunk(self, start: int, end: int) -> BlockChunk:
        client = self._client
        before = client.bytes_read, client.failures
        chunk = self._fetch_consistent(client, range(start, end + 1))
        self._sizer.record_batch(
            end - start + 1, client.bytes_read - before[0], client.failures - before[1]
        )
        return chunk

    def _fetch_consistent(self, client: RpcClient, numbers: range) -> BlockChunk:
        """Read from the first endpoint with consistent answers. Raises the last one's error."""
        for remaining in reversed(range(len(self._source.urls))):
            try:
                with _name_endpoint(client, numbers[0], numbers[-1]):
                    return self._read_chunk(client, numbers)
            except ChainMismatch:
                if not remaining:
                    raise
                client.use_next_endpoint()
        raise AssertionError("there is at least one endpoint")

    def _read_chunk(self, client: RpcClient, numbers: range) -> BlockChunk:
        read = self._read_full_blocks if self._wants_transactions else self._read_headers
        chunk = read(client, numbers)
        return self._add_traces(client, numbers, chunk) if self._wants_traces else chunk

    def _read_full_blocks(self, client: RpcClient, numbers: range) -> BlockChunk:
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        blocks = client.columns(calls, self._shape)
        check_numbers(blocks, numbers)
        transactions = blocks.field("transactions")
        transaction_counts = list_lengths(transactions)
        receipts, receipt_counts = self._read_receipts(
            client, numbers, transactions.flatten(), transaction_counts
        )
        check_receipts(blocks, transaction_counts, receipts, receipt_counts)
        logs = receipts.field("logs")
        starts = np.concatenate([[0], np.cumsum(list_lengths(logs))])
        edges = starts[np.concatenate([[0], np.cumsum(transaction_counts)])]
        check_logs(blocks, logs.flatten(), np.diff(edges))
        return BlockChunk(blocks, transactions.flatten(), receipts, logs.flatten())

    def _read_receipts(
        self, client: RpcClient, numbers: range, transactions: _Array, transaction_counts: Any
    ) -> tuple[_Array, Any]:
        """Read the receipts of all blocks, and count those of each block."""
        if self._has_block_receipts:
            calls = [RpcCall("eth_getBlockReceipts", (hex(number),)) for number in numbers]
            try:
                lists = client.columns(calls, shapes.RECEIPTS)
                return lists.flatten(), list_lengths(lists)
            except UnsupportedMethod:
                self._has_block_receipts = False
        hashes = transactions.field("hash").to_pylist()
        calls = [RpcCall("eth_getTransactionReceipt", (name,)) for name in hashes]
        return client.columns(calls, shapes.RECEIPT), transaction_counts

    def _add_traces(self, client: RpcClient, numbers: range, chunk: BlockChunk) -> BlockChunk:
        calls = [RpcCall("trace_block", (hex(number),)) for number in numbers]
        try:
            lists = client.columns(calls, shapes.TRACES)
        except UnsupportedMethod as error:
            raise RpcRefused(
                f"{error}: the node does not support trace_block; use an endpoint with traces"
            ) from error
        check_traces(chunk.blocks, lists.flatten(), list_lengths(lists))
        return replace(chunk, traces=lists.flatten())

    def _read_headers(self, client: RpcClient, numbers: range) -> BlockChunk:
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        blocks = client.columns(calls, self._shape)
        check_numbers(blocks, numbers)
        empty = pa.array([], shapes.LOG)
        if not self._wants_logs:
            return BlockChunk(blocks, empty, empty, empty)
        logs, per_block = _sort_logs(self._read_logs(client, numbers), numbers)
        check_logs(blocks, logs, per_block)
        check_empty_blooms(blocks, per_block)
        return BlockChunk(blocks, empty, empty, logs)

    def _read_logs(self, client: RpcClient, numbers: range) -> _Array:
        """Read the logs of a range; halve the range if the node refuses it."""
        span = {"fromBlock": hex(numbers[0]), "toBlock": hex(numbers[-1])}
        calls = [RpcCall("eth_getLogs", (span,))]
        if len(numbers) == 1:
            return client.columns(calls, shapes.LOGS).flatten()
        try:
            return client.columns(calls, shapes.LOGS, tries=_MAX_RANGE_TRIES).flatten()
        except RpcRefused:
            middle = len(numbers) // 2
            halves = numbers[:middle], numbers[middle:]
            return pa.concat_arrays([self._read_logs(client, half) for half in halves])


def _sort_logs(logs: _Array, numbers: range) -> tuple[_Array, Any]:
    """Sort logs by block and index, and count those of each block. Raises ChainMismatch."""
    blocks = np.asarray(parse_integers(logs.field("blockNumber")))
    outside = np.flatnonzero((blocks < numbers[0]) | (blocks > numbers[-1]))
    if len(outside):
        raise ChainMismatch(
            f"eth_getLogs of blocks {numbers[0]} to {numbers[-1]} returned a log of block "
            f"{blocks[outside[0]]}"
        )
    order = np.lexsort((np.asarray(parse_integers(logs.field("logIndex"))), blocks))
    per_block = np.bincount(blocks - numbers[0], minlength=len(numbers))
    return logs.take(pa.array(order)), per_block


@contextmanager
def _name_endpoint(client: RpcClient, start: int, end: int) -> Generator[None]:
    """Add the endpoint to a ChainMismatch; turn parse errors into ChainMismatch."""
    try:
        yield
    except ChainMismatch as error:
        raise ChainMismatch(f"{error}; check the RPC endpoint {client.label}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ChainMismatch(
            f"blocks {start} to {end} at {client.label}: unexpected JSON structure ({error}); "
            "check the RPC endpoint"
        ) from error
