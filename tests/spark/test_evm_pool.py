"""RPC pools, traces and withdrawals: wrong or slow endpoints are avoided, and keys stay secret."""

import threading
import time
from typing import Any

import pytest

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.reading import ALL, read_tables
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.spark.errors import BadTask, ChainMismatch, OperatorError, RpcRefused
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.rpc.endpoint import Endpoint
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.evm.tables import SCHEMAS, build_table

# The node's answers are changed on purpose, and withdrawals are added to older blocks.
_RULES = VerifyRules(exceptions=("withdrawals_root",))


def _read(*urls: str, **how: Any) -> dict[str, Any]:
    return read_tables(*urls, rules=_RULES, **{"initial_delay": 0.01, **how})


def change_results(method: str, change: Any) -> Any:
    """Change every result of one method."""

    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == method and item.get("result"):
                change(item["result"])
        return items

    return after


def test_requests_are_spread_over_the_endpoints_of_a_pool(
    node: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    with FaultyNode(rpc_url) as second:
        assert _read(node.url, second.url, batch=2) == expected(chain, 0, 29)
        assert "eth_getBlockReceipts" in node.methods()
        assert "eth_getBlockReceipts" in second.methods()


@pytest.mark.parametrize(
    "after",
    [
        change_results("eth_getBlockReceipts", lambda result: result.clear()),
        change_results("eth_getBlockReceipts", lambda result: result.reverse()),
        change_results("eth_getBlockByNumber", lambda result: result.update(number="0x63")),
    ],
    ids=["missing_receipts", "mixed_up_receipts", "another_block"],
)
def test_a_pool_avoids_an_endpoint_with_inconsistent_answers(
    node: FaultyNode, rpc_url: str, chain: DevChain, after: Any
) -> None:
    node.after = after
    assert _read(node.url, rpc_url, spread=False) == expected(chain, 0, 29)
    assert "eth_getBlockReceipts" in node.methods() or "eth_getBlockByNumber" in node.methods()


def test_an_endpoint_that_lies_is_set_aside_and_reported_with_the_evidence(
    node: FaultyNode, rpc_url: str
) -> None:
    miner = "0x" + "11" * 20
    node.after = change_results("eth_getBlockByNumber", lambda result: result.update(miner=miner))
    source = RpcSource((node.url, rpc_url), spread=False, initial_delay=0.001)
    with RangeReader(source, ("blocks",)) as reader:
        [chunk] = reader.chunks(3, 3)
        [rejected] = reader.verified().rejected
    assert miner not in chunk.blocks.field("miner").to_pylist()
    assert chunk.endpoint == rpc_url.removeprefix("http://")
    assert rejected.endpoint == node.url.removeprefix("http://")
    assert (rejected.block, rejected.field) == (3, "hash")
    assert rejected.received == rejected.block_hash != rejected.expected
    assert SET_ASIDE.includes(node.url) and not SET_ASIDE.includes(rpc_url)


def test_a_pool_avoids_an_endpoint_that_lags_behind(
    node: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    def lag(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getBlockByNumber" and int(call["params"][0], 16) > 20:
                item["result"] = None
        return items

    node.after = lag
    assert _read(node.url, rpc_url, spread=False) == expected(chain, 0, 29)


def test_a_limit_error_inside_a_batch_makes_later_batches_smaller(
    node: FaultyNode, chain: DevChain
) -> None:
    def limit(calls: Calls, items: Calls) -> Calls:
        if len(calls) <= 4:
            return items
        refusal = {"code": -32005, "message": "limit exceeded"}
        return [*items[:-1], {"id": calls[-1]["id"], "error": refusal}]

    node.after = limit
    assert _read(node.url) == expected(chain, 0, 29)


@pytest.mark.parametrize("code", [-32005, -32602, -32000])
def test_a_log_range_with_too_many_results_is_split_in_halves(
    node: FaultyNode, chain: DevChain, code: int
) -> None:
    def limit(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getLogs":
                span = [int(call["params"][0][end], 16) for end in ("fromBlock", "toBlock")]
                if span[1] - span[0] >= 3:
                    item.pop("result")
                    item["error"] = {"code": code, "message": "query returned too many results"}
        return items

    node.after = limit
    assert _read(node.url, tables=("logs",))["logs"] == expected(chain, 0, 29)["logs"]


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32601, "message": "no"},
        {"code": -32004, "message": "This method is not supported"},
        {"code": -32000, "message": "the method eth_getBlockReceipts does not exist"},
        {"code": -32600, "message": "Method not found"},
    ],
    ids=["32601", "32004", "32000", "32600"],
)
def test_receipts_are_requested_one_by_one_when_block_receipts_are_unsupported(
    node: FaultyNode, chain: DevChain, error: dict[str, Any]
) -> None:
    def refuse(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getBlockReceipts":
                item.pop("result")
                item["error"] = error
        return items

    node.after = refuse
    assert _read(node.url, end=9) == expected(chain, 0, 9)


def test_a_pool_avoids_an_endpoint_that_times_out(
    node: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    stopped_hanging = threading.Event()

    def hang(calls: Calls) -> Reply | None:
        stopped_hanging.wait(60)
        return None

    node.before = hang
    try:
        found = _read(node.url, rpc_url, spread=False, timeout=2, tries=6)
    finally:
        stopped_hanging.set()
    assert found == expected(chain, 0, 29)


def test_a_quota_limits_the_rate_of_calls(rpc_url: str) -> None:
    began = time.monotonic()
    _read(f"{rpc_url}#calls_per_second=200", end=29)  # 1 + 30 + 30 calls
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize(
    "part", [*(f"calls_per_second={n}" for n in ("0", "-1", "nan", "x", "")), "speed=3"]
)
def test_an_invalid_quota_is_refused(part: str) -> None:
    with pytest.raises(BadTask, match="calls_per_second"):
        Endpoint(f"http://127.0.0.1:1/#{part}", timeout=1)


@pytest.mark.parametrize(
    "reply",
    [Reply(401), Reply(500), Reply(200, b"{"), Reply(200, b'{"id":0,"error":{"code":-32000}}')],
    ids=["unauthorized", "failing", "truncated", "refused"],
)
def test_no_error_contains_the_key_of_an_endpoint(node: FaultyNode, reply: Reply) -> None:
    node.before = lambda calls: reply
    url = node.url.replace("://", "://user:hunter2@") + "/v3/secretkey?token=alsosecret"
    with pytest.raises(OperatorError) as caught:
        _read(url, tries=2)
    text = f"{caught.value!r} {caught.value.__cause__!r}"
    assert node.label in text
    assert not any(secret in text for secret in ("hunter2", "secretkey", "alsosecret"))


def _with_traces(calls: Calls, items: Calls) -> Calls:
    """Answer `trace_block`: every transaction has one call with one inner call."""
    for call, item in zip(calls, items, strict=True):
        if call["method"] == "trace_block":
            item.pop("error")
            item["result"] = _TRACES[int(call["params"][0], 16)]
    return items


_TRACES: dict[int, list[dict[str, Any]]] = {}


@pytest.fixture
def traced(node: FaultyNode, chain: DevChain) -> FaultyNode:
    for row in expected(chain, 0, 29)["blocks"]:
        _TRACES[row["block_number"]] = []
    blocks = {row["block_number"]: row for row in expected(chain, 0, 29)["blocks"]}
    for row in expected(chain, 0, 29)["transactions"]:
        common = {
            "blockHash": "0x" + blocks[row["block_number"]]["block_hash"].hex(),
            "blockNumber": row["block_number"],
            "transactionHash": "0x" + row["transaction_hash"].hex(),
            "transactionPosition": row["transaction_index"],
        }
        call = {"from": "0x" + "aa" * 20, "to": "0x" + "bb" * 20, "gas": "0x5", "input": "0x01"}
        outer = {"action": {**call, "value": hex(2**200), "callType": "call"}, "type": "call"}
        suicide = {"address": "0x" + "cc" * 20, "refundAddress": "0x" + "dd" * 20, "balance": "0x7"}
        inner = {"action": suicide, "type": "suicide", "result": None}
        _TRACES[row["block_number"]] += [
            {**common, **outer, "result": None, "error": "Reverted", "subtraces": 1}
            | {"traceAddress": []},
            {**common, **inner, "subtraces": 0, "traceAddress": [0, 2]},
        ]
    node.after = _with_traces
    return node


def test_traces_have_the_columns_of_cryo(traced: FaultyNode, chain: DevChain) -> None:
    rows = _read(traced.url, tables=("traces",))["traces"]
    transactions = expected(chain, 0, 29)["transactions"]
    assert len(rows) == 2 * len(transactions)
    outer, inner = rows[:2]
    assert outer["action_value"] == str(2**200) and outer["action_value_f64"] == float(2**200)
    assert outer["trace_address"] == "" and inner["trace_address"] == "0_2"
    assert outer["error"] == "Reverted" and outer["result_gas_used"] is None
    assert (inner["action_from"], inner["action_to"]) == (b"\xcc" * 20, b"\xdd" * 20)
    assert inner["action_value"] == "7" and inner["action_type"] == "suicide"
    assert [row["transaction_hash"] for row in rows[::2]] == [
        row["transaction_hash"] for row in transactions
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda traces: traces.pop(), "transactions but traces of"),
        (lambda traces: traces[0].update(blockHash="0x" + "11" * 32), "a trace of another block"),
    ],
    ids=["held_back", "of_another_block"],
)
def test_traces_that_do_not_match_their_block_are_detected(
    traced: FaultyNode, chain: DevChain, change: Any, message: str
) -> None:
    number = expected(chain, 0, 29)["transactions"][0]["block_number"]
    change(_TRACES[number])
    if message.startswith("transactions"):
        change(_TRACES[number])  # the inner trace, then the outer one
    with pytest.raises(ChainMismatch, match=message):
        _read(traced.url, tables=("traces",), tries=1)


def test_a_node_without_traces_is_reported(rpc_url: str) -> None:
    with pytest.raises(RpcRefused, match="does not support trace_block"):
        _read(rpc_url, tables=("traces",), tries=1)


def test_withdrawals_are_read_from_their_blocks(node: FaultyNode) -> None:
    given = {"index": "0x5", "validatorIndex": "0x9", "address": "0x" + "ee" * 20, "amount": "0x64"}

    def add(block: dict[str, Any]) -> None:
        if int(block["number"], 16) >= 3:  # earlier blocks have no such field
            block["withdrawals"] = [given] * (int(block["number"], 16) - 3)

    node.after = change_results("eth_getBlockByNumber", add)
    rows = _read(node.url, tables=("withdrawals",), end=5)["withdrawals"]
    assert [row["block_number"] for row in rows] == [4, 5, 5]
    assert rows[0]["amount_gwei"] == 100 and rows[0]["address"] == b"\xee" * 20


def test_empty_tables_have_the_same_column_types() -> None:
    with (
        start_server(DevChain(length=3, txs_per_block=0)) as server,
        RangeReader(RpcSource((server.url,)), (*ALL, "withdrawals")) as reader,
    ):
        for chunk in reader.chunks(0, 2):
            for table in (*ALL, "withdrawals"):
                assert build_table(table, chunk, 1).schema == SCHEMAS[table]
