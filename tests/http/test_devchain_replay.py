"""A recorded chain answers like the original chain, and cryo reads both correctly."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.chain import cryo
from trace_etl.devtools.devchain import DevChain, RunningServer, start_server

ROOT = Path(__file__).parents[2]
LENGTH = 120
DEADLINE = 150.0


def _replay(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.replay", *arguments]


def _chain() -> DevChain:
    return DevChain(seed=9, length=LENGTH, txs_per_block=10)


@pytest.fixture(scope="module")
def devchain() -> Iterator[RunningServer]:
    with start_server(_chain()) as running:
        yield running


@pytest.fixture(scope="module")
def recording(devchain: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "chain.jsonl"
    span = ("--start", "0", "--end", str(LENGTH - 1))
    command = _replay("record", str(path), "--rpc-url", devchain.url, *span)
    subprocess.run(command, cwd=ROOT, check=True, timeout=DEADLINE)
    return path


@pytest.fixture(scope="module")
def replay(recording: Path) -> Iterator[str]:
    with _serving(recording) as url:
        yield url


@contextmanager
def _serving(recording: Path) -> Iterator[str]:
    ready = recording.with_suffix(".url")
    command = _replay("serve", str(recording), "--ready-file", str(ready))
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            end = time.monotonic() + DEADLINE
            while not ready.exists():
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
            yield ready.read_text().strip()
        finally:
            process.terminate()


@pytest.fixture
def same(devchain: RunningServer, replay: str) -> Iterator[Callable[..., Any]]:
    """Call both servers, compare the answers, and return the answer."""
    with httpx.Client(timeout=DEADLINE) as client:

        def call_both(method: str, *params: Any) -> Any:
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            original, recorded = (
                client.post(url, json=call).json() for url in (devchain.url, replay)
            )
            assert original == recorded
            return original.get("result", original.get("error"))

        yield call_both


def test_a_recording_answers_like_the_original_chain(same: Callable[..., Any]) -> None:
    same("eth_chainId")
    assert same("eth_blockNumber") == hex(LENGTH - 1)
    for number in range(0, LENGTH, 7):
        light = same("eth_getBlockByNumber", hex(number), False)
        same("eth_getBlockByNumber", hex(number), True)
        same("eth_getBlockByHash", light["hash"], True)
        same("eth_getBlockReceipts", hex(number))
        for transaction_hash in light["transactions"][:3]:
            same("eth_getTransactionByHash", transaction_hash)
            same("eth_getTransactionReceipt", transaction_hash)
    logs = same("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"})
    same("eth_getLogs", {"address": logs[0]["address"], "fromBlock": "0x0", "toBlock": "latest"})
    assert same("eth_getBlockByNumber", hex(LENGTH), True) is None
    assert same("eth_getLogs", {"toBlock": hex(LENGTH)})["code"] == -32602
    assert same("trace_block", "0x1")["code"] == -32601


def test_a_recording_made_without_a_server_is_identical(recording: Path, tmp_path: Path) -> None:
    made_file = tmp_path / "made.jsonl"
    options = ("--length", str(LENGTH), "--seed", "9", "--txs-per-block", "10")
    subprocess.run(
        _replay("make", str(made_file), *options), cwd=ROOT, check=True, timeout=DEADLINE
    )
    with made_file.open("rb") as made_lines, recording.open("rb") as recorded_lines:
        assert list(map(orjson.loads, made_lines)) == list(map(orjson.loads, recorded_lines))


def test_recording_missing_blocks_fails_and_leaves_no_file(
    devchain: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "chain.jsonl"
    command = _replay("record", str(path), "--rpc-url", devchain.url, "--end", str(LENGTH))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE, check=False)
    assert result.returncode != 0
    assert b"no such block" in result.stderr
    assert not path.exists()


def _data(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def _number(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def _expected_blocks(block: dict[str, Any], receipts: list[dict[str, Any]]) -> list[Any]:
    numbers = ("number", "timestamp", "gasUsed", "baseFeePerGas")
    texts = ("hash", "miner", "extraData")
    return [[_number(block[f]) for f in numbers] + [_data(block[f]) for f in texts]]


def _expected_transactions(block: dict[str, Any], receipts: list[dict[str, Any]]) -> list[Any]:
    numbers = ("blockNumber", "transactionIndex", "nonce", "gas", "gasPrice", "type")
    fees = ("maxFeePerGas", "maxPriorityFeePerGas")
    return [
        [_number(tx.get(f)) for f in numbers + fees]
        + [_data(tx[f]) for f in ("hash", "from", "to", "input")]
        + [int(tx["value"], 16).to_bytes(32, "big"), str(int(tx["value"], 16))]
        + [_number(receipt["gasUsed"]), receipt["status"] == "0x1"]
        for tx, receipt in zip(block["transactions"], receipts, strict=True)
    ]


def _expected_logs(block: dict[str, Any], receipts: list[dict[str, Any]]) -> list[Any]:
    return [
        [_number(log[f]) for f in ("blockNumber", "transactionIndex", "logIndex")]
        + [_data(log[f]) for f in ("transactionHash", "address", "data")]
        + [_data(topic) for topic in (log["topics"] + [None] * 4)[:4]]
        for receipt in receipts
        for log in receipt["logs"]
    ]


_READ_BY_CRYO: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "blocks": (
        _expected_blocks,
        "block_number timestamp gas_used base_fee_per_gas block_hash author extra_data",
    ),
    "transactions": (
        _expected_transactions,
        "block_number transaction_index nonce gas_limit gas_price transaction_type max_fee_per_gas"
        " max_priority_fee_per_gas transaction_hash from_address to_address input value_binary"
        " value_string gas_used success",
    ),
    "logs": (
        _expected_logs,
        "block_number transaction_index log_index transaction_hash address data"
        " topic0 topic1 topic2 topic3",
    ),
}


@pytest.mark.parametrize("source", ["devchain", "replay"])
def test_cryo_reads_every_block_transaction_and_log_correctly(
    source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("cryo")
    served = request.getfixturevalue(source)
    url = served if isinstance(served, str) else served.url
    directory = tmp_path / "cryo"
    cryo.freeze(_READ_BY_CRYO, LENGTH, url, directory, chunk=50)
    chain = _chain()
    chain.seal_to(chain.head)
    blocks = [block for block in map(chain.block, range(LENGTH)) if block is not None]
    read = [(orjson.loads(block.full()), orjson.loads(block.all_receipts())) for block in blocks]
    for dataset, (expected, columns) in _READ_BY_CRYO.items():
        files = sorted(directory.glob(f"*__{dataset}__*.parquet"))
        rows = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
        expected_rows = [row for block, receipts in read for row in expected(block, receipts)]
        assert [[row[column] for column in columns.split()] for row in rows] == expected_rows
        assert {row["chain_id"] for row in rows} == {chain.chain_id}
