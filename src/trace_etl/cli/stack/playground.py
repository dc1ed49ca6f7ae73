"""A stack in a temporary home and a chain to read: made for the demo, and gone after it."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import httpx
import typer

from trace_etl.cli.client import Client, fail, of_connection
from trace_etl.lite import stack
from trace_etl.lite.errors import PartFailed, StackError
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options
from trace_etl.lite.processes import detached, log_view, process_tree, record
from trace_etl.lite.processes.ports import LOOPBACK, free_port

_CHAIN_WITHIN = 30.0
_NODE_PATIENCE = 10.0
_MOST_RESTARTS = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Playground:
    """Where the demo happens."""

    home: Path
    client: Client
    chain: str
    chain_pid: int | None

    def check_workers(self) -> None:
        """Raises PartFailed when a worker keeps dying: nothing would ever happen then."""
        home = Home(self.home)
        for part in record.read(home.record):
            if part.name.startswith("worker") and part.restarts >= _MOST_RESTARTS:
                log = home.logs / f"{part.name}.log"
                raise PartFailed(f"the {part.name} does not stay up:\n{log_view.tail(log)}")


@contextmanager
def playground(
    blocks: int, workers: int, rpc_url: str | None, *, keep: bool
) -> Generator[Playground]:
    """Start chain and stack; at the end remove both, unless asked to keep them.

    An interruption always removes them. Raises StackError if the stack does not come up.
    """
    if rpc_url is not None:
        _check_node(rpc_url, blocks)
    with _interruptible():
        home = Home(Path(tempfile.mkdtemp(prefix="trace-demo-")))
        chain: _Chain | None = None
        keeping = False
        try:
            if rpc_url is None:
                home.open()
                chain = _Chain.start(home, blocks, outlive_us=keep)
            place = _open(home, chain, rpc_url, workers)
            keeping = keep
            with place.client.http:
                yield place
        except KeyboardInterrupt:
            keeping = False
            raise
        finally:
            if not keeping:
                _remove(home, chain)


@contextmanager
def _interruptible() -> Generator[None]:
    """Let every polite request to end look like Ctrl-C, so that cleaning up has one path."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(home: Home, chain: "_Chain | None", rpc_url: str | None, workers: int) -> Playground:
    typer.echo(f"Starting a stack in {home.path} ...")
    url = chain.url if chain else rpc_url or ""
    connection, seconds = detached.start(home, Options((url,), workers=workers))
    if chain:
        chain.wait()
    typer.echo(f"Trace is up after {seconds:.1f} s: {connection.api_url}")
    words = "a chain of our own" if chain else "your node"
    return Playground(home.path, of_connection(connection), words, chain.pid if chain else None)


def _remove(home: Home, chain: "_Chain | None") -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
    typer.echo("Stopping and removing the stack ...")
    if chain:
        chain.stop()
    try:
        stack.purge(home)
    except StackError as refused:
        typer.echo(f"note: {refused}; {refused.remedy}", err=True)
    shutil.rmtree(home.path, ignore_errors=True)


@dataclass(frozen=True)
class _Chain:
    """`trace devchain` as a child."""

    process: "subprocess.Popen[bytes]"
    url: str
    ready_file: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    def start(cls, home: Home, blocks: int, *, outlive_us: bool) -> "_Chain":
        # The port is chosen here, so that the stack need not wait for the chain.
        port, ready_file, log = free_port(), home.run / "devchain.url", home.logs / "devchain.log"
        command = [
            sys.executable,
            "-P",
            "-m",
            "trace_etl.devtools.devchain",
            "--length",
            str(blocks),
        ]
        command += ["--port", str(port), "--ready-file", str(ready_file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command if outlive_us else process_tree.bound(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, f"http://{LOOPBACK}:{port}", ready_file, log)

    def wait(self) -> None:
        """Until it answers. Ends the program if it does not."""
        deadline = time.monotonic() + _CHAIN_WITHIN
        while not self.ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                fail([f"the chain did not start: {self.log.read_text().strip()}"])
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _check_node(url: str, blocks: int) -> None:
    """Ask the node for its head before anything is started. Ends the program if it is no use."""
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    try:
        answer = httpx.post(url, json=call, timeout=_NODE_PATIENCE)
        head = int(cast(dict[str, Any], answer.raise_for_status().json())["result"], 16)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fail([f"--rpc-url: {error or type(error).__name__}"])
    except (ValueError, KeyError, TypeError):
        fail(["--rpc-url: it did not answer eth_blockNumber as an Ethereum node does"])
    if head < blocks - 1:
        fail([f"--rpc-url: the chain ends at block {head}; use --blocks {head + 1} or fewer"])
