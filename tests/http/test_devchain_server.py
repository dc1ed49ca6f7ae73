"""Starting, growing and stopping the development chain, as a thread and as a process."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from trace_etl.cli.main import app
from trace_etl.devtools.devchain import DevChain, ReorgAt, start_server

DEADLINE = 30.0


def _until(condition: Callable[[], Any], description: str) -> Any:
    """Wait for a condition, not for a time."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"{description} did not happen within {DEADLINE} s")


def _call(url: str, method: str, *params: Any) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(url, json=call, timeout=DEADLINE).json()["result"]


def _head(url: str) -> int:
    return int(_call(url, "eth_blockNumber"), 16)


def _command(*options: str) -> list[str]:
    return [sys.executable, "-m", "trace_etl.devtools.devchain", *options]


def test_a_long_chain_answers_before_all_blocks_are_sealed() -> None:
    chain = DevChain(seed=7, length=1_000_000)
    with start_server(chain) as running:
        assert _head(running.url) == 999_999
        assert _call(running.url, "eth_getBlockByNumber", "0x64", False)["number"] == "0x64"
        assert chain.sealed < 1_000_000


def test_a_chain_grows_to_its_length_and_reorganises_meanwhile() -> None:
    plain = DevChain(seed=7, length=31)
    plain.seal_to(30)
    chain = DevChain(seed=7, length=31, initial=11, reorg_at=ReorgAt(20, 2))
    with start_server(chain, block_time=0.01) as running:
        assert _head(running.url) >= 10
        _until(lambda: _head(running.url) == 30, "the last block")
        hashes = [
            _call(running.url, "eth_getBlockByNumber", hex(n), False)["hash"] for n in range(31)
        ]
    expected = [plain.block(n) for n in range(31)]
    same = [h.encode() in b.fields for h, b in zip(hashes, expected, strict=True) if b]
    assert same == [True] * 19 + [False] * 12


def test_a_test_can_mine_and_reorganise_a_running_chain() -> None:
    with start_server(DevChain(seed=7, length=10)) as running:
        running.mine(5)
        assert _head(running.url) == 14
        old = _call(running.url, "eth_getBlockByNumber", "0xe", False)["hash"]
        assert running.reorg(2) == 13
        assert _call(running.url, "eth_getBlockByNumber", "0xe", False)["hash"] != old
        with pytest.raises(ValueError, match="depth"):
            running.reorg(15)


def test_a_closed_server_stops_answering_and_can_be_closed_twice() -> None:
    running = start_server(DevChain(seed=7, length=10))
    with httpx.Client() as client:
        client.post(running.url, json={})
        running.close()
        with pytest.raises(httpx.TransportError):
            client.post(running.url, json={})
    running.close()


def test_a_taken_port_raises_an_error() -> None:
    other = socket.create_server(("127.0.0.1", 0))
    with other, pytest.raises(OSError, match="in use"):
        start_server(DevChain(seed=7, length=10), port=other.getsockname()[1])


def test_the_process_prints_its_url_and_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "url"
    command = _command("--port", "0", "--length", "50", "--ready-file", str(ready))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            _until(ready.exists, "the ready file")
            url = ready.read_text().strip()
            assert _head(url) == 49
            with httpx.Client() as idle:
                idle.post(url, json={})  # an open connection must not delay the stop
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out.decode().strip() == url
    assert b"devchain_ready" in err
    assert b"Traceback" not in err


def test_a_taken_port_ends_the_process_with_an_error_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = _command("--port", str(port), "--ready-file", str(tmp_path / "url"))
        result = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False)
    assert result.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in result.stderr.decode()
    assert b"Traceback" not in result.stderr
    assert not (tmp_path / "url").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--length", "0"], "--length"),
        (["--length", "ten"], "--length"),
        (["--seed", "-1"], "--seed"),
        (["--port", "70000"], "--port"),
        (["--txs-per-block", "201"], "--txs-per-block"),
        (["--block-time", "-1"], "--block-time"),
        (["--block-time", "nan"], "--block-time"),
        (["--initial", "5"], "--block-time"),
        (["--initial", "50", "--length", "10", "--block-time", "1"], "initial"),
        (["--reorg-at", "5:"], "--reorg-at"),
        (["--reorg-at", "x"], "--reorg-at"),
        (["--reorg-at", "1:2:3"], "--reorg-at"),
        (["--reorg-at", "-5"], "--reorg-at"),
        (["--length", "10", "--reorg-at", "10"], "reorg_at block"),
        (["--reorg-at", "2:3"], "reorg_at depth"),
        (["--reorg-at", "500:65"], "reorg_at depth"),
        (["--ready-file", "/nowhere/at/all"], "--ready-file"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_bad_option_is_refused_with_its_name(options: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["devchain", "--port", "0", *options], terminal_width=200)
    assert result.exit_code == 2
    assert named in result.output
