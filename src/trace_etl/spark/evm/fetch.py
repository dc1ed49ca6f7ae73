"""Fetch ranges of blocks from a node: prefetch in batches, and check before returning them."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from threading import Lock, local
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from trace_etl.api.task.verification import RejectedAnswer, VerifiedRange
from trace_etl.dag.chain.rules import RULES_VERSION, VerifyRules
from trace_etl.dag.chain.tables import ColumnChoice, list_columns
from trace_etl.spark.errors import (
    ChainMismatch,
    DifferentChains,
    RpcRefused,
    UnsupportedMethod,
    VerificationFailed,
    shorten,
)
from trace_etl.spark.evm import shapes
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import list_lengths, parse_integers
from trace_etl.spark.evm.rpc.answers import RpcCall
from trace_etl.spark.evm.rpc.client import RpcClient, RpcSource, ask_endpoints
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.verify.agreement import (
    check_empty_blooms,
    check_links,
    check_logs,
    check_numbers,
    check_receipts,
    check_traces,
    check_transactions,
    check_uncles,
)
from trace_etl.spark.verify.verifier import Verifier

_log = structlog.stdlib.get_logger()
DEFAULT_RULES = VerifyRules()
OnReject = Callable[[], None]
"""Called for each answer that contradicted a header, in the thread that read it."""
_Array = Any  # pyarrow ships no types
_INITIAL_BATCH = 10
# Tries of eth_getLogs before the range is halved: nodes report "too much" in many ways, so any
# refusal halves it.
_MAX_RANGE_TRIES = 2
_TARGET_BYTES = 4_000_000  # an answer of this size hides the round trip and still parses quickly


def ignore_rejected() -> None:
    """Do nothing: the range's certificate has the answers that were rejected."""


@dataclass(frozen=True)
class ServedChain:
    """The id of the chain that an endpoint reports."""

    chain_id: int
    url: str
    label: str


def list_chains(source: RpcSource) -> list[ServedChain]:
    """Ask every endpoint for its chain. Endpoints that do not answer are left out if others do."""
    return ask_endpoints(
        source, lambda client: ServedChain(_read_chain_id(client), client.url, client.label)
    )


def require_one_chain(served: Sequence[ServedChain]) -> int:
    """Return the id of the chain that all endpoints serve. Raises DifferentChains."""
    if len({one.chain_id for one in served}) > 1:
        named = ", ".join(f"{one.chain_id} ({one.label})" for one in served)
        raise DifferentChains(
            f"the RPC endpoints report different chains: {named}; remove those of the wrong chain "
            "from the RPC pool"
        )
    return served[0].chain_id


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
    """Reads ranges of blocks in order, with concurrent requests. Use it in a `with` block.

    Every chunk is verified by `rules` before it is returned.
    """

    def __init__(
        self,
        source: RpcSource,
        tables: Sequence[str],
        rules: VerifyRules = DEFAULT_RULES,
        columns: ColumnChoice = "standard",
        on_reject: OnReject = ignore_rejected,
    ) -> None:
        self._source = source
        self._on_reject = on_reject
        self._rules = rules
        self._verifier = Verifier(rules)
        self._wants_transactions = "transactions" in tables
        self._wants_logs = "logs" in tables
        self._wants_traces = "traces" in tables
        self._wants_uncles = "uncles" in tables
        has_root = rules.includes("receipts_root")
        is_detailed = self._wants_transactions and bool(_list_added("transactions", columns))
        counts_transactions = "blocks" in tables and "transaction_count" in _list_added(
            "blocks", columns
        )
        # Only the receipts prove the data of logs, and how many transactions a block has.
        is_proven = has_root and (self._wants_logs or counts_transactions)
        self._wants_receipts = self._wants_transactions or is_proven
        self._shape = shapes.block(
            transactions=self._wants_transactions,
            hashes=self._wants_traces or self._wants_receipts or counts_transactions,
            withdrawals="withdrawals" in tables,
            uncles=self._wants_uncles,
            is_signed=is_detailed or rules.includes("transactions_root") or rules.senders,
        )
        is_checked = rules.level == "roots" or rules.has_state_sync
        self._receipt_shape = shapes.receipt(is_detailed=is_detailed or is_checked)
        self._sizer = BatchSizer(source.batch)
        self._pool = ThreadPoolExecutor(source.concurrency, "evm-fetch")
        self._local = local()
        self._clients: list[RpcClient] = []
        self._has_block_receipts = True
        self._chain_id: int | None = None
        self._borders: list[tuple[int, int, str, str, str]] = []
        self._endpoints: set[str] = set()
        self._rejected: list[RejectedAnswer] = []

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
        """The id of the chain. All endpoints must agree, unless signed transactions prove it.

        Raises DifferentChains, or ChainMismatch if an answer is not a number.
        """
        if self._wants_transactions and self._rules.includes("transactions_root"):
            self._chain_id = _read_chain_id(self._client)
            return self._chain_id
        self._chain_id = require_one_chain(list_chains(self._source))
        return self._chain_id

    @property
    def label(self) -> str:
        """The endpoint that the next call in this thread asks, without secrets."""
        return self._client.label

    def call(self, call: RpcCall) -> Any:
        """Make one call in the caller's thread and return its result."""
        return self._client.call(call)

    def chunks(self, start: int, end: int) -> Iterator[BlockChunk]:
        """Yield all blocks from `start` to `end` in order; check that they form a chain."""
        waiting: deque[Future[BlockChunk]] = deque()
        parent: str | None = None
        self._borders, self._rejected = [], []
        self._endpoints = set()
        try:
            while start <= end or waiting:
                while start <= end and len(waiting) < self._source.concurrency:
                    stop = min(end, start + self._sizer.size - 1)
                    waiting.append(self._pool.submit(self._fetch_chunk, start, stop))
                    start = stop + 1
                chunk = waiting.popleft().result()
                check_links(chunk.blocks, parent, chunk.endpoint)
                parent = chunk.blocks.field("hash")[-1].as_py()
                self._record_borders(chunk)
                yield chunk
        finally:
            for future in waiting:  # the caller stopped early
                future.cancel()

    def verified(self, *, is_provisional: bool = False) -> VerifiedRange:
        """What was verified of the chunks that were read, which must be consecutive."""
        first, last = self._borders[0], self._borders[-1]
        return VerifiedRange(
            start=first[0],
            end=last[1],
            level=self._rules.level,
            checks=list(self._list_checks()),
            rules_version=RULES_VERSION,
            exceptions=list(self._rules.exceptions),
            endpoints=sorted(self._endpoints),
            rejected=list(self._rejected),
            first_parent_hash=first[2],
            first_hash=first[3],
            last_hash=last[4],
            provisional=is_provisional,
        )

    def _list_checks(self) -> Iterator[str]:
        """The checks that apply to the tables that are read."""
        needed = {
            "transactions_root": self._wants_transactions,
            "gas_price": self._wants_transactions,
            "contract_address": self._wants_transactions,
            "senders": self._wants_transactions,
            "receipts_root": self._wants_receipts,
            "gas_used": self._wants_receipts,
            "logs_bloom": self._wants_receipts or self._wants_logs,
            "log_indices": self._wants_receipts or self._wants_logs,
            "withdrawals_root": self._shape.get_field_index("withdrawals") >= 0,
            "uncles_hash": self._wants_uncles,
        }
        return (check for check in self._rules.checks() if needed.get(check, True))

    def _record_borders(self, chunk: BlockChunk) -> None:
        column = chunk.blocks.field
        self._borders[1:] = [
            (
                int(column("number")[0].as_py(), 16),
                int(column("number")[-1].as_py(), 16),
                column("parentHash")[0].as_py().lower(),
                column("hash")[0].as_py().lower(),
                column("hash")[-1].as_py().lower(),
            )
        ]

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
        """Read from the first endpoint with valid answers. Raises the errors of all endpoints."""
        errors: list[ChainMismatch] = []
        for _ in self._source.urls:
            client.answered.clear()
            label = client.label
            try:
                with _name_endpoint(label, numbers[0], numbers[-1]):
                    chunk = self._read_chunk(client, numbers)
                    self._verifier.check(chunk, self._chain_id)
                labels = sorted(endpoint.label for endpoint in client.answered)
                self._endpoints.update(labels)
                return replace(chunk, endpoint=", ".join(labels))
            except ChainMismatch as error:
                errors.append(error)
                if isinstance(error, VerificationFailed):
                    self._reject(client, error)
                client.use_next_endpoint()
        texts = dict.fromkeys(str(error) for error in errors)
        raise type(errors[-1])("; ".join(texts)) from errors[-1]

    def _reject(self, client: RpcClient, error: VerificationFailed) -> None:
        """Set the endpoint aside, unless several contributed to the answer."""
        evidence = error.evidence
        assert evidence is not None
        if len(client.answered) == 1 and len(self._source.urls) > 1:
            SET_ASIDE.add(next(iter(client.answered)).url)
        labels = ", ".join(sorted(endpoint.label for endpoint in client.answered))
        rejected = RejectedAnswer(endpoint=labels, **asdict(evidence))
        self._rejected.append(rejected)
        _log.warning("answer_rejected", **rejected.model_dump())
        self._on_reject()

    def _read_chunk(self, client: RpcClient, numbers: range) -> BlockChunk:
        method = "eth_getBlockByNumber"
        calls = [RpcCall(method, (hex(number), self._wants_transactions)) for number in numbers]
        blocks = client.columns(calls, self._shape)
        check_numbers(blocks, numbers)
        chunk = BlockChunk(blocks)
        if self._wants_receipts:
            chunk = self._add_receipts(client, numbers, chunk)
        elif self._wants_logs:
            logs, per_block = _sort_logs(self._read_logs(client, numbers), numbers)
            check_logs(blocks, logs, per_block)
            check_empty_blooms(blocks, per_block)
            chunk = replace(chunk, fetched_logs=logs)
        if self._wants_uncles:
            chunk = replace(chunk, uncles=self._read_uncles(client, blocks))
        return self._add_traces(client, numbers, chunk) if self._wants_traces else chunk

    def _add_receipts(self, client: RpcClient, numbers: range, chunk: BlockChunk) -> BlockChunk:
        lists = chunk.blocks.field("transactions")
        counts, rows = list_lengths(lists), lists.flatten()
        if self._wants_transactions:
            check_transactions(chunk.blocks, rows, counts)
        hashes = rows.field("hash") if self._wants_transactions else rows
        receipts, receipt_counts = self._read_receipts(client, numbers, hashes, counts)
        check_receipts(chunk.blocks, hashes, counts, receipts, receipt_counts)
        chunk = replace(
            chunk,
            transactions=rows if self._wants_transactions else None,
            receipts=receipts,
            receipt_counts=counts,
        )
        check_logs(chunk.blocks, chunk.logs, chunk.logs_per_block)
        return chunk

    def _read_receipts(
        self, client: RpcClient, numbers: range, hashes: _Array, counts: Any
    ) -> tuple[_Array, Any]:
        """Read the receipts of all blocks, and count those of each block."""
        if self._has_block_receipts:
            calls = [RpcCall("eth_getBlockReceipts", (hex(number),)) for number in numbers]
            try:
                lists = client.columns(calls, pa.list_(self._receipt_shape))
                return lists.flatten(), list_lengths(lists)
            except UnsupportedMethod:
                self._has_block_receipts = False
        calls = [RpcCall("eth_getTransactionReceipt", (name,)) for name in hashes.to_pylist()]
        return client.columns(calls, self._receipt_shape), counts

    def _read_uncles(self, client: RpcClient, blocks: _Array) -> _Array:
        lists = blocks.field("uncles")
        counts = list_lengths(lists).tolist()
        calls = [
            RpcCall("eth_getUncleByBlockNumberAndIndex", (number, hex(index)))
            for number, count in zip(blocks.field("number").to_pylist(), counts, strict=True)
            for index in range(count)
        ]
        uncles = client.columns(calls, shapes.HEADER)
        check_uncles(blocks, lists.flatten(), uncles, counts)
        return uncles

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


def _read_chain_id(client: RpcClient) -> int:
    answer = client.call(RpcCall("eth_chainId", ()))
    try:
        return int(answer, 16)
    except (TypeError, ValueError) as error:
        raise ChainMismatch(
            f"eth_chainId at {client.label} answered {str(answer)[:40]!r}; check the RPC endpoint"
        ) from error


def _list_added(table: str, columns: ColumnChoice) -> set[str]:
    """The chosen columns that are not standard."""
    standard = {column.name for column in list_columns(table, "standard")}
    return {column.name for column in list_columns(table, columns)} - standard


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
def _name_endpoint(label: str, start: int, end: int) -> Generator[None]:
    """Add the endpoint to a ChainMismatch; turn parse errors into ChainMismatch."""
    try:
        yield
    except VerificationFailed as error:
        named = VerificationFailed(f"{error} from the RPC endpoint {label}")
        named.evidence = error.evidence
        raise named from error
    except ChainMismatch as error:
        raise ChainMismatch(f"{shorten(str(error))}; check the RPC endpoint {label}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ChainMismatch(
            f"blocks {start} to {end} at {label}: unexpected JSON structure ({shorten(str(error))}); "
            "check the RPC endpoint"
        ) from error
