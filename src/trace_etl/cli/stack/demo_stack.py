"""The temporary stack of the demo, with a development chain to read."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import httpx
import typer

from trace_etl.cli.client import StackClient, fail, open_connection
from trace_etl.lite import stack
from trace_etl.lite.errors import ServiceFailed, StackError
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options
from trace_etl.lite.processes import detached, log_view, process_tree, record
from trace_etl.lite.processes.ports import LOOPBACK, free_port

_CHAIN_START_TIMEOUT = 30.0
_NODE_TIMEOUT = 10.0
_MAX_RESTARTS = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class DemoStack:
    """A running temporary stack."""

    home: Path
    client: StackClient
    chain: str
    chain_pid: int | None

    def check_workers(self) -> None:
        """Raise ServiceFailed if a worker keeps exiting: the demo would wait forever."""
        home = Home(self.home)
        for service in record.read(home.record):
            if service.name.startswith("worker") and service.restarts >= _MAX_RESTARTS:
                log = home.logs / f"{service.name}.log"
                raise ServiceFailed(f"{service.name} keeps exiting:\n{log_view.tail(log)}")


@contextmanager
def open_demo_stack(
    blocks: int, workers: int, rpc_url: str | None, *, keep: bool
) -> Generator[DemoStack]:
    """Start a chain and a stack, and remove both at the end, unless `keep` is set.

    An interruption always removes them. Raises StackError if the stack does not start.
    """
    if rpc_url is not None:
        _check_node(rpc_url, blocks)
    with _interrupt_on_signals():
        home = Home(Path(tempfile.mkdtemp(prefix="trace-demo-")))
        chain: _Chain | None = None
        keeping = False
        try:
            if rpc_url is None:
                home.open()
                chain = _Chain.start(home, blocks, outlive_us=keep)
            stack = _start_stack(home, chain, rpc_url, workers)
            keeping = keep
            with closing(stack.client):
                yield stack
        except KeyboardInterrupt:
            keeping = False
            raise
        finally:
            if not keeping:
                _remove_stack(home, chain)


@contextmanager
def _interrupt_on_signals() -> Generator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that there is one way to clean up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_stack(
    home: Home, chain: "_Chain | None", rpc_url: str | None, workers: int
) -> DemoStack:
    typer.echo(f"Starting a stack in {home.path} ...")
    url = chain.url if chain else rpc_url or ""
    connection, seconds = detached.start(home, Options((url,), workers=workers))
    if chain:
        chain.wait_until_ready()
    typer.echo(f"Trace is up after {seconds:.1f} s: {connection.api_url}")
    source = "development chain" if chain else "your node"
    return DemoStack(home.path, open_connection(connection), source, chain.pid if chain else None)


def _remove_stack(home: Home, chain: "_Chain | None") -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleanup
    _print_line("Stopping and removing the stack ...")
    if chain:
        chain.stop()
    try:
        stack.purge(home)
    except StackError as error:
        _print_line(f"note: {error}; {error.remedy}", err=True)
    shutil.rmtree(home.path, ignore_errors=True)


def _print_line(text: str, *, err: bool = False) -> None:
    """Print a line, unless the terminal is closed: the cleanup must not stop there."""
    with suppress(OSError):
        typer.echo(text, err=err)


@dataclass(frozen=True)
class _Chain:
    """`trace devchain` as a child process."""

    process: "subprocess.Popen[bytes]"
    url: str
    ready_file: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    def start(cls, home: Home, blocks: int, *, outlive_us: bool) -> "_Chain":
        # The port is chosen here, so that the stack can start before the chain answers.
        port, ready_file, log = free_port(), home.run / "devchain.url", home.logs / "devchain.log"
        command = [sys.executable, "-P", "-m", "trace_etl.devtools.devchain"]
        command += ["--length", str(blocks), "--port", str(port), "--ready-file", str(ready_file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command if outlive_us else process_tree.bound(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, f"http://{LOOPBACK}:{port}", ready_file, log)

    def wait_until_ready(self) -> None:
        """Wait until the chain answers. Exits if it does not start."""
        deadline = time.monotonic() + _CHAIN_START_TIMEOUT
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
    """Read the head of the node before the stack starts. Exits if the node cannot be used."""
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    try:
        answer = httpx.post(url, json=call, timeout=_NODE_TIMEOUT)
        head = int(cast(dict[str, Any], answer.raise_for_status().json())["result"], 16)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fail([f"--rpc-url: cannot reach the node: {error or type(error).__name__}; check the URL"])
    except (ValueError, KeyError, TypeError):
        fail(
            [
                "--rpc-url: the answer to eth_blockNumber is not that of an Ethereum node; check the URL"
            ]
        )
    if head < blocks - 1:
        fail([f"--rpc-url: the chain ends at block {head}; use --blocks {head + 1} or fewer"])
