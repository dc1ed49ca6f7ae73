"""Unreliable or wrong nodes cause a retry or a clear error, never a wrong row. HTTP only, no Spark."""

import socket
import time
from typing import Any

import orjson
import pytest

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.reading import read_tables
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import ChainMismatch, RpcRefused, RpcUnreachable


def refuse_first_time(reply: Reply) -> Any:
    """Refuse each set of calls the first time it is requested."""
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
def test_a_node_with_intermittent_errors_gives_the_same_rows(
    node: FaultyNode, chain: DevChain, reply: Reply
) -> None:
    node.before = refuse_first_time(reply)
    assert read_tables(node.url, end=5, batch=2, tries=6, initial_delay=0.01) == expected(
        chain, 0, 5
    )


def test_a_batch_too_large_for_the_node_is_halved_until_it_fits(
    node: FaultyNode, chain: DevChain
) -> None:
    node.before = lambda calls: Reply(413) if len(calls) > 7 else None
    assert read_tables(node.url, batch=50, initial_delay=0.01) == expected(chain, 0, 29)
    sizes = [len(calls) for calls in node.requests]
    assert max(sizes) > 7  # a large batch was tried
    assert sum(size > 7 for size in sizes) < len(sizes) / 2  # and the limit was remembered


def test_receipts_are_requested_per_transaction_without_eth_getblockreceipts(
    node: FaultyNode, chain: DevChain
) -> None:
    node.after = lambda calls, items: [
        {"id": call["id"], "error": {"code": -32601, "message": "no such method"}}
        if call["method"] == "eth_getBlockReceipts"
        else item
        for call, item in zip(calls, items, strict=True)
    ]
    assert read_tables(node.url, concurrency=1) == expected(chain, 0, 29)
    methods = node.methods()
    assert methods.index("eth_getTransactionReceipt") > methods.index("eth_getBlockReceipts")
    last = max(i for i, method in enumerate(methods) if method == "eth_getBlockReceipts")
    assert last < methods.index("eth_getTransactionReceipt")  # not requested again


def test_batch_answers_in_another_order_are_matched_by_id(
    node: FaultyNode, chain: DevChain
) -> None:
    node.after = lambda calls, items: items[::-1]
    assert read_tables(node.url) == expected(chain, 0, 29)


def test_the_pool_switches_from_a_dead_endpoint_to_another(rpc_url: str, chain: DevChain) -> None:
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        dead = f"http://127.0.0.1:{unused_port.getsockname()[1]}"
        assert read_tables(dead, rpc_url) == expected(chain, 0, 29)


def test_an_unreachable_node_is_reported_without_its_secrets() -> None:
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        port = unused_port.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(RpcUnreachable) as caught:
            read_tables(f"http://user:hunter2@127.0.0.1:{port}/v3/secretkey?token=alsosecret")
        assert time.monotonic() - started < 60
    text = str(caught.value)
    assert f"eth_chainId at 127.0.0.1:{port}" in text and "5 tries" in text
    assert not any(secret in text for secret in ("hunter2", "secretkey", "alsosecret"))


def test_a_node_that_never_answers_runs_into_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RpcUnreachable, match="timed out"):
            read_tables(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2, tries=2)


def test_a_permanent_refusal_names_the_method_the_block_and_the_endpoint(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        return [
            {"id": call["id"], "error": {"code": -32000, "message": "pruned\nhistory"}}
            if call["params"][:1] == ["0x11"]
            else item
            for call, item in zip(calls, items, strict=True)
        ]

    node.after = after
    with pytest.raises(RpcRefused) as caught:
        read_tables(node.url, tries=2)
    assert f"of block 17 at {node.label}: error -32000: pruned history" in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_rejected_key_is_not_retried(node: FaultyNode, status: int) -> None:
    node.before = lambda calls: Reply(status)
    with pytest.raises(RpcRefused, match=f"HTTP {status}"):
        read_tables(node.url)
    assert len(node.requests) == 1


def test_a_block_beyond_the_head_is_reported_by_number(rpc_url: str) -> None:
    with pytest.raises(ChainMismatch, match=r"eth_getBlockByNumber of block 60 .* not found"):
        read_tables(rpc_url, tables=("blocks",), end=70, tries=2)


def change_result(method: str, number: int, change: Any) -> Any:
    """Change the node's answer to one call."""

    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == method and call["params"][:1] == [hex(number)]:
                change(item["result"])
        return items

    return after


def set_field(name: str, value: Any) -> Any:
    return lambda result: result.__setitem__(name, value)


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (
            "eth_getBlockByNumber",
            set_field("parentHash", "0x" + "11" * 32),
            r"block 1\d \(0x[0-9a-f]{64}\), hash: expected",
        ),
        ("eth_getBlockByNumber", set_field("number", "0x63"), "answered with block 0x63"),
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
        ("eth_getBlockByNumber", set_field("extraData", "0xabc"), "extraData: "),
        ("eth_getBlockByNumber", set_field("gasUsed", "0xffffffffffffffff"), "hash: expected"),
        ("eth_getBlockByNumber", lambda result: result.pop("hash"), "has no hash"),
        ("eth_getBlockByNumber", lambda result: result.pop("miner"), "a value is missing"),
        ("eth_getBlockByNumber", set_field("transactions", {"a": 1}), "unexpected JSON structure"),
    ],
)
def test_inconsistent_answers_of_a_node_are_detected(
    node: FaultyNode, chain: DevChain, method: str, change: Any, message: str
) -> None:
    number = next(
        row["block_number"]
        for row in expected(chain, 10, 29)["logs"]
        if row["transaction_index"] > 0
    )
    node.after = change_result(method, number, change)
    with pytest.raises(ChainMismatch, match=message):
        read_tables(node.url, concurrency=1)


def test_missing_logs_are_detected_by_the_bloom_filter_of_the_block(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"] = []
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="a bloom filter with logs"):
        read_tables(node.url, tables=("logs",), rules=VerifyRules("bloom"))


def test_a_log_outside_the_requested_range_is_detected(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"][0]["blockNumber"] = "0x63"
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="returned a log of block 99"):
        read_tables(node.url, tables=("logs",), rules=VerifyRules("bloom"))


def test_logs_of_another_fork_are_detected(node: FaultyNode) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                item["result"][0]["blockHash"] = "0x" + "33" * 32
        return items

    node.after = after
    with pytest.raises(ChainMismatch, match="has a log of another block"):
        read_tables(node.url, tables=("logs",), rules=VerifyRules("bloom"))
