"""Ranges of blocks from a node, fetched ahead in batches, checked before anybody sees them."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, local

from trace_etl.pipeline.errors import ChainMismatch
from trace_etl.pipeline.evm.checks import check_links, check_logs, check_numbers, check_receipts
from trace_etl.pipeline.evm.client import Call, Client, MethodNotFound
from trace_etl.pipeline.evm.tables import Chunk, Json

_FIRST_BATCH = 10
_WANTED_BYTES = 4_000_000  # an answer this large hides the round trip and still parses quickly


@dataclass(frozen=True)
class Source:
    """Where to read and how hard: endpoints, blocks per batch at most, requests at a time."""

    urls: tuple[str, ...]
    batch: int = 50
    concurrency: int = 3
    timeout: float = 30.0
    tries: int = 5
    first_wait: float = 0.2


class Pace:
    """How many blocks the next batch asks for: fewer after trouble, more after success."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = min(most, _FIRST_BATCH)
        self._lock = Lock()

    @property
    def size(self) -> int:
        return self._size

    def record(self, blocks: int, bytes_read: int, troubles: int) -> None:
        """Learn from a batch."""
        with self._lock:
            if troubles:
                self._size = max(1, self._size // 2)
                return
            fitting = _WANTED_BYTES * blocks // max(bytes_read, 1)
            self._size = max(1, min(self._most, self._size * 2, fitting))


class RangeReader:
    """Reads ranges of blocks with several requests under way, in order. Used in a `with`."""

    def __init__(self, source: Source, tables: Sequence[str]) -> None:
        self._source = source
        self._wants_transactions = "transactions" in tables
        self._wants_logs = "logs" in tables
        self._pace = Pace(source.batch)
        self._pool = ThreadPoolExecutor(source.concurrency, "evm-fetch")
        self._here = local()
        self._clients: list[Client] = []
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
        [answer] = self._client.batch([Call("eth_chainId", ())])
        return int(answer, 16)

    def chunks(self, start: int, end: int) -> Iterator[Chunk]:
        """Every block from `start` to `end`, in order, each linked to the one before."""
        waiting: deque[Future[Chunk]] = deque()
        parent: str | None = None
        while start <= end or waiting:
            while start <= end and len(waiting) < self._source.concurrency:
                stop = min(end, start + self._pace.size - 1)
                waiting.append(self._pool.submit(self._fetch, start, stop))
                start = stop + 1
            chunk = waiting.popleft().result()
            check_links(chunk.blocks, parent)
            parent = chunk.blocks[-1]["hash"]
            yield chunk

    @property
    def _client(self) -> Client:
        """This thread's own: connections are not shared."""
        if not hasattr(self._here, "client"):
            source = self._source
            client = Client(
                source.urls,
                timeout=source.timeout,
                tries=source.tries,
                first_wait=source.first_wait,
            )
            self._here.client = client
            self._clients.append(client)
        return self._here.client

    def _fetch(self, start: int, end: int) -> Chunk:
        client = self._client
        before = client.bytes_read, client.troubles
        read = self._full_blocks if self._wants_transactions else self._headers
        try:
            chunk = read(client, range(start, end + 1))
        except ChainMismatch as error:
            raise ChainMismatch(f"{error}, at {client.label}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChainMismatch(
                f"blocks {start} to {end} at {client.label}: an answer of unknown shape "
                f"({type(error).__name__}: {error})"
            ) from error
        self._pace.record(
            end - start + 1, client.bytes_read - before[0], client.troubles - before[1]
        )
        return chunk

    def _full_blocks(self, client: Client, numbers: range) -> Chunk:
        bodies = [Call("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        if self._has_block_receipts:
            tails = [Call("eth_getBlockReceipts", (hex(number),)) for number in numbers]
            try:
                answers = client.batch(bodies + tails)
                return _assemble(numbers, answers[: len(bodies)], answers[len(bodies) :])
            except MethodNotFound:
                self._has_block_receipts = False
        blocks = client.batch(bodies)
        return _assemble(numbers, blocks, _receipts_one_by_one(client, blocks))

    def _headers(self, client: Client, numbers: range) -> Chunk:
        calls = [Call("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        if not self._wants_logs:
            blocks = client.batch(calls)
            return _assemble(numbers, blocks, None)
        span = {"fromBlock": hex(numbers[0]), "toBlock": hex(numbers[-1])}
        *blocks, logs = client.batch([*calls, Call("eth_getLogs", (span,))])
        check_numbers(blocks, numbers)
        check_logs(blocks, logs)
        logs.sort(key=_position)
        return Chunk(blocks, [], logs)


def _assemble(numbers: range, blocks: list[Json], receipts: list[list[Json]] | None) -> Chunk:
    """One chunk of answers that belong together. Raises ChainMismatch."""
    check_numbers(blocks, numbers)
    if receipts is None:
        return Chunk(blocks)
    check_receipts(blocks, receipts)
    flat = [receipt for answer in receipts for receipt in answer]
    return Chunk(blocks, flat, [log for receipt in flat for log in receipt["logs"]])


def _position(log: Json) -> tuple[int, int]:
    return int(log["blockNumber"], 16), int(log["logIndex"], 16)


def _receipts_one_by_one(client: Client, blocks: list[Json]) -> list[list[Json]]:
    """For nodes without `eth_getBlockReceipts`."""
    calls = [
        Call("eth_getTransactionReceipt", (row["hash"],))
        for block in blocks
        for row in block["transactions"]
    ]
    answers = iter(client.batch(calls))
    return [[next(answers) for _ in block["transactions"]] for block in blocks]
