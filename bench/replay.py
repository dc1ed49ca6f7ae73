"""Record a chain once and serve it from memory, so that a benchmark measures only the readers.

    python -m bench.replay record chain.jsonl --rpc-url URL --start 0 --end 1999
    python -m bench.replay make chain.jsonl --length 2000 --txs-per-block 30
    python -m bench.replay serve chain.jsonl --port 0 --ready-file url

The file has one JSON line for the chain and one for each block with its receipts.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import orjson
import typer

from trace_etl import logs
from trace_etl.devtools.devchain import DevChain
from trace_etl.devtools.devchain.chain.blocks import BlockJson, LogJson
from trace_etl.devtools.devchain.command import HOST, serve_until_signal
from trace_etl.devtools.devchain.rpc.httpd import listen
from trace_etl.devtools.devchain.rpc.jsonrpc import JsonRpc
from trace_etl.devtools.devchain.rpc.methods import NodeMethods

_BLOCKS_PER_BATCH = 25
_START_SECONDS = 60.0

app = typer.Typer(help=__doc__, add_completion=False)


class Recording:
    """Consecutive blocks of one chain, as a source for the node methods."""

    def __init__(self, chain_id: int, blocks: Sequence[BlockJson]) -> None:
        self.chain_id = chain_id
        self.head = blocks[-1].number
        self.finality_depth = 0
        self._first = blocks[0].number
        self._blocks = blocks
        self._by_hash = {orjson.loads(block.fields + b"}")["hash"]: block for block in blocks}
        self._by_transaction = {
            transaction_hash: (block, index)
            for block in blocks
            for index, transaction_hash in enumerate(block.transaction_hashes)
        }

    def block(self, number: int) -> BlockJson | None:
        return self._blocks[number - self._first] if self._first <= number <= self.head else None

    def block_by_hash(self, block_hash: str) -> BlockJson | None:
        return self._by_hash.get(block_hash)

    def find_transaction(self, transaction_hash: str) -> tuple[BlockJson, int] | None:
        return self._by_transaction.get(transaction_hash)


class RecordingFailed(Exception):
    """The node did not return the requested data."""


def lines_of_rpc(url: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines of a recording from any node that supports eth_getBlockReceipts."""
    with httpx.Client(timeout=120) as http:
        chain_id = _call(http, url, [("eth_chainId", [])])[0]
        yield orjson.dumps({"chain_id": int(chain_id, 16)})
        for first in range(start, end + 1, _BLOCKS_PER_BATCH):
            numbers = [hex(n) for n in range(first, min(first + _BLOCKS_PER_BATCH, end + 1))]
            blocks = _call(http, url, [("eth_getBlockByNumber", [n, True]) for n in numbers])
            receipts = _call(http, url, [("eth_getBlockReceipts", [n]) for n in numbers])
            for block, its_receipts in zip(blocks, receipts, strict=True):
                yield orjson.dumps({"block": block, "receipts": its_receipts})


def _call(http: httpx.Client, url: str, calls: list[tuple[str, list[Any]]]) -> list[Any]:
    batch = [
        {"jsonrpc": "2.0", "id": index, "method": method, "params": params}
        for index, (method, params) in enumerate(calls)
    ]
    answers = orjson.loads(http.post(url, json=batch).raise_for_status().content)
    if not isinstance(answers, list) or len(answers) != len(calls):
        raise RecordingFailed(f"{url} answered a batch with {str(answers)[:200]}")
    answers.sort(key=lambda answer: answer["id"])
    for answer, (method, params) in zip(answers, calls, strict=True):
        if answer.get("result") is None:
            raise RecordingFailed(f"{method} {params}: {answer.get('error', 'no such block')}")
    return [answer["result"] for answer in answers]


def lines_of_chain(chain: DevChain) -> Iterator[bytes]:
    """Yield the lines of a recording from a development chain, without a server."""
    yield orjson.dumps({"chain_id": chain.chain_id})
    chain.seal_to(chain.head)
    for block in map(chain.block, range(chain.head + 1)):
        assert block is not None
        yield b'{"block":%b,"receipts":%b}' % (block.full(), block.all_receipts())


def write(path: Path, lines: Iterator[bytes]) -> int:
    """Write a recording atomically and return the number of its blocks."""
    count = -1
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
    partial.replace(path)
    return count


def read(path: Path) -> Recording:
    """Load a recording into memory, with all responses rendered."""
    with path.open("rb") as file:
        chain_id = orjson.loads(next(file))["chain_id"]
        return Recording(chain_id, [_block(orjson.loads(line)) for line in file])


def _block(recorded: dict[str, Any]) -> BlockJson:
    block, receipts = recorded["block"], recorded["receipts"]
    transactions = block.pop("transactions")
    return BlockJson(
        number=int(block["number"], 16),
        fields=orjson.dumps(block)[:-1],
        transaction_hashes=tuple(transaction["hash"] for transaction in transactions),
        transactions=list(map(_compact, transactions)),
        receipts=list(map(_compact, receipts)),
        logs=[
            LogJson(log["address"], tuple(log["topics"]), _compact(log))
            for receipt in receipts
            for log in receipt["logs"]
        ],
    )


def _compact(value: Any) -> bytes:
    """Encode JSON into a buffer of the exact size. The buffers of orjson occupy 8 KB each, too much
    for values that stay in memory."""
    return orjson.dumps(value)[:-1] + b"}"


@contextmanager
def replaying(path: Path) -> Generator[str]:
    """Serve a recording from a separate process; yields the URL."""
    with served("-m", "bench.replay", "serve", str(path.resolve())) as url:
        yield url


@contextmanager
def served(*command: str) -> Generator[str]:
    """Start a server process that accepts `--ready-file`; yields its URL."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory, "url")
        process = subprocess.Popen(
            (sys.executable, *command, "--ready-file", str(ready)),
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        )
        try:
            yield _wait_until_ready(process, ready)
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path) -> str:
    end = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the replay server did not start; its errors are above")
        time.sleep(0.01)
    return ready.read_text().strip()


@app.command("record")
def record_command(
    path: Path, rpc_url: Annotated[str, typer.Option()], start: int = 0, end: int = 1_999
) -> None:
    """Record blocks start to end (inclusive) from any node."""
    print(f"{write(path, lines_of_rpc(rpc_url, start, end))} blocks in {path}")


@app.command("make")
def make_command(path: Path, length: int = 2_000, seed: int = 7, txs_per_block: int = 30) -> None:
    """Record a development chain; 30 transactions per block come with about 38 logs."""
    chain = DevChain(seed, length, txs_per_block=txs_per_block)
    print(f"{write(path, lines_of_chain(chain))} blocks in {path}")


@app.command("serve")
def serve_command(path: Path, port: int = 0, ready_file: Path | None = None) -> None:
    """Serve a recording until interrupted."""

    async def never(number: int) -> None:
        raise AssertionError(f"block {number} must exist")

    logs.configure("replay")
    rpc = JsonRpc(NodeMethods(read(path)).table(), never)
    serve_until_signal(listen(rpc.answer, HOST, port), ready_file)


if __name__ == "__main__":
    app()
