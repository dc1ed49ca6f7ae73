"""Nodes that limp or lie: a recovery or a clear error, never a wrong row. Real HTTP, no Spark."""

import socket
import time
from collections.abc import Generator
from typing import Any

import orjson
import pytest

from support.chain_rows import expected
from support.faulty_node import Calls, FaultyNode, Reply
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import ChainMismatch, RpcRefused, RpcUnreachable
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table

ALL = ("blocks", "transactions", "logs")


def _read(*urls: str, tables: tuple[str, ...] = ALL, end: int = 29, **how: Any) -> dict[str, Any]:
    """Every table of blocks 0 to `end`, as the data source makes them."""
    found: dict[str, list[Any]] = {table: [] for table in tables}
    with RangeReader(RpcSource(urls, **how), tables) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(0, end):
            for table in tables:
                found[table] += build_table(table, chunk, chain_id).to_pylist()
    return found


@pytest.fixture
def node(rpc_url: str) -> Generator[FaultyNode]:
    with FaultyNode(rpc_url) as made:
        yield made


def _once_per_call(reply: Reply) -> Any:
    """Refuse each set of calls the first time it is asked for."""
    seen: set[bytes] = set()

    def before(calls: Calls) -> Reply | None:
        key = orjson.dumps(calls)
        if key in seen:
            return None
        seen.add(key)
        return reply

    return before


@pytest.mark.parametrize(
    "reply",
    [
        Reply(429, b"slow down", {"Retry-After": "0"}),
        Reply(503),
        Reply(502, b"<html>"),
        Reply(200, b'[{"jsonrpc":"2.0","id":0,"resu'),
        Reply(200, b"x" * 1000, cut_at=10),
        Reply(200, orjson.dumps({"id": None, "error": {"code": -32005, "message": "limit"}})),
    ],
    ids=["429", "503", "502", "truncated_json", "hung_up", "limit_exceeded"],
)
def test_a_flapping_node_gives_the_same_rows(
    node: FaultyNode, chain: DevChain, reply: Reply
) -> None:
    node.before = _once_per_call(reply)
    assert _read(node.url, end=5, batch=2, tries=6, initial_delay=0.01) == expected(chain, 0, 5)


def test_a_batch_too_large_for_the_node_is_halved_until_it_fits(
    node: FaultyNode, chain: DevChain
) -> None:
    node.before = lambda calls: Reply(413) if len(calls) > 7 else None
    assert _read(node.url, batch=50, initial_delay=0.01) == expected(chain, 0, 29)
    sizes = [len(calls) for calls in node.requests]
    assert max(sizes) > 7  # it was tried
    assert sum(size > 7 for size in sizes) < len(sizes) / 2  # and learnt from


def test_a_node_without_block_receipts_is_asked_for_each(node: FaultyNode, chain: DevChain) -> None:
    node.after = lambda calls, items: [
        {"id": call["id"], "error": {"code": -32601, "message": "no such method"}}
        if call["method"] == "eth_getBlockReceipts"
        else item
        for call, item in zip(calls, items, strict=True)
    ]
    assert _read(node.url, concurrency=1) == expected(chain, 0, 29)
    told = node.methods()
    assert told.index("eth_getTransactionReceipt") > told.index("eth_getBlockReceipts")
    last = max(i for i, method in enumerate(told) if method == "eth_getBlockReceipts")
    assert last < told.index("eth_getTransactionReceipt")  # not asked again


def test_answers_in_another_order_are_put_right(node: FaultyNode, chain: DevChain) -> None:
    node.after = lambda calls, items: items[::-1]
    assert _read(node.url) == expected(chain, 0, 29)


def test_the_pool_moves_on_from_a_dead_endpoint(rpc_url: str, chain: DevChain) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert _read(dead, rpc_url) == expected(chain, 0, 29)


def test_an_unreachable_node_is_given_up_quickly_and_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(RpcUnreachable) as caught:
            _read(f"http://user:hunter2@127.0.0.1:{port}/v3/secretkey?token=alsosecret")
        assert time.monotonic() - started < 20
    text = str(caught.value)
    assert f"eth_chainId at 127.0.0.1:{port}" in text and "5 tries" in text
    assert not any(secret in text for secret in ("hunter2", "secretkey", "alsosecret"))


def test_a_node_that_never_answers_runs_into_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RpcUnreachable, match="timed out"):
            _read(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2, tries=2)


def test_a_refusal_that_stays_names_method_block_and_endpoint(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        return [
            {"id": call["id"], "error": {"code": -32000, "message": "pruned\nhistory"}}
            if call["params"][:1] == ["0x11"]
            else item
            for call, item in zip(calls, items, strict=True)
        ]

    node.after = after
    with pytest.raises(RpcRefused) as caught:
        _read(node.url, tries=2)
    assert f"of block 17 at {node.label}: error -32000: pruned history" in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_is_not_tried_again(node: FaultyNode, status: int) -> None:
    node.before = lambda calls: Reply(status)
    with pytest.raises(RpcRefused, match=f"HTTP {status}"):
        _read(node.url)
    assert len(node.requests) == 1


def test_a_block_beyond_the_head_is_an_error_that_names_it(rpc_url: str) -> None:
    with pytest.raises(ChainMismatch, match=r"eth_getBlockByNumber of block 60 .* not found"):
        _read(rpc_url, tables=("blocks",), end=70, tries=2)


def _changed(method: str, number: int, change: Any) -> Any:
    """Change the node's answer to one call."""

    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == method and call["params"][:1] == [hex(number)]:
                change(item["result"])
        return items

    return after


def _set(name: str, value: Any) -> Any:
    return lambda result: result.__setitem__(name, value)


@pytest.mark.parametrize(
    ("method", "change", "complaint"),
    [
        ("eth_getBlockByNumber", _set("parentHash", "0x" + "11" * 32), "has parent 0x1111"),
        ("eth_getBlockByNumber", _set("number", "0x63"), "answered with block 0x63"),
        ("eth_getBlockReceipts", lambda result: result.pop(), "receipts"),
        ("eth_getBlockReceipts", lambda result: result.reverse(), "a receipt that is not of"),
        (
            "eth_getBlockReceipts",
            lambda result: result[0].__setitem__("blockHash", "0x" + "22" * 32),
            "a receipt that is not of",
        ),
        (
            "eth_getBlockReceipts",
            lambda result: next(log for r in result for log in r["logs"]).__setitem__(
                "blockHash", "0x" + "22" * 32
            ),
            "a log of another block",
        ),
        ("eth_getBlockByNumber", _set("extraData", "0xabc"), "blocks of blocks"),
        ("eth_getBlockByNumber", _set("gasUsed", "0xffffffffffffffff"), "OverflowError"),
        ("eth_getBlockByNumber", lambda result: result.pop("hash"), "has no hash"),
        ("eth_getBlockByNumber", lambda result: result.pop("miner"), "a value is missing"),
        ("eth_getBlockByNumber", _set("transactions", {"a": 1}), "unexpected JSON structure"),
    ],
)
def test_a_lying_node_is_caught(
    node: FaultyNode, chain: DevChain, method: str, change: Any, complaint: str
) -> None:
    number = next(
        row["block_number"]
        for row in expected(chain, 10, 29)["logs"]
        if row["transaction_index"] > 0
    )
    node.after = _changed(method, number, change)
    with pytest.raises(ChainMismatch, match=complaint):
        _read(node.url, concurrency=1)


def test_logs_held_back_are_missed_by_the_blocks_bloom_filter(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"] = []
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="a bloom filter with logs in it"):
        _read(node.url, tables=("logs",))


def test_a_log_from_beyond_the_range_is_caught(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"][0]["blockNumber"] = "0x63"
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="returned a log of block 99"):
        _read(node.url, tables=("logs",))


def test_logs_of_another_fork_are_caught(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"][0]["blockHash"] = "0x" + "33" * 32
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="has a log of another block"):
        _read(node.url, tables=("logs",))
