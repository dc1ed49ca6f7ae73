"""A real Ethereum node: anvil, which mines on request, with a contract that logs."""

import os
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_PACKAGE = "@foundry-rs/anvil-linux-amd64"
# Bytecode of a contract that logs its first 32 input bytes as topic and as data.
_LOGGER = "0x6c6000358060005260206000a100600052600d6013f3"
_START_SECONDS = 20.0


def binary(packages: Path) -> Path:
    """Return the program inside the npm package. Raises FileNotFoundError with instructions."""
    configured = os.environ.get("TRACE_ANVIL")
    path = (
        Path(configured) if configured else packages / "node_modules" / _PACKAGE / "bin" / "anvil"
    )
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: anvil not found; run `make test-chain` or set TRACE_ANVIL"
        )
    return path


class Anvil:
    """One running node."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http
        self.sender: str = self.call("eth_accounts")[0]
        deployed = self.call(
            "eth_sendTransaction", {"from": self.sender, "gas": "0x30000", "data": _LOGGER}
        )
        self.mine(1)
        self.contract: str = self.call("eth_getTransactionReceipt", deployed)["contractAddress"]

    def call(self, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._http.post(self.url, json=body).json()
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    @property
    def head(self) -> int:
        return int(self.call("eth_blockNumber"), 16)

    def log_transaction(self, value: int) -> dict[str, str]:
        """Return a transaction that logs a number."""
        return {
            "from": self.sender,
            "to": self.contract,
            "gas": "0x30000",
            "data": f"0x{value:064x}",
        }

    def mine(self, blocks: int, values: Sequence[int] = (), *, seconds: int = 1) -> None:
        """Mine blocks, `seconds` apart; the first one holds a transaction for each value."""
        for value in values:
            self.call("eth_sendTransaction", self.log_transaction(value))
        self.call("anvil_mine", hex(blocks), hex(seconds))

    def reorg(self, depth: int, values: Sequence[int] = ()) -> None:
        """Replace the last blocks; the first new one holds a transaction for each value."""
        self.call("anvil_reorg", depth, [[self.log_transaction(value), 0] for value in values])

    def blocks(self) -> list[tuple[Any, Any]]:
        """Return the node's canonical chain: each block with its receipts."""
        numbers = map(hex, range(self.head + 1))
        return [
            (
                self.call("eth_getBlockByNumber", number, True),
                self.call("eth_getBlockReceipts", number),
            )
            for number in numbers
        ]


@contextmanager
def running(packages: Path) -> Generator[Anvil]:
    """Run a node on a free port, without automatic mining, with a fixed first timestamp."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("--port", str(port), "--no-mining", "--timestamp", "1700000000", "--quiet")
    process = subprocess.Popen([binary(packages), *arguments], stdout=subprocess.DEVNULL)
    try:
        _wait_until_listening(process, port)
        with httpx.Client(timeout=30, trust_env=False) as http:
            yield Anvil(f"http://127.0.0.1:{port}", http)
    finally:
        process.kill()
        process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
