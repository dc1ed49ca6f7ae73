"""Nodes that lie about the content of blocks: an honest endpoint is used instead, or the read fails."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode
from trace_etl.api.task.verification import VerifiedRange
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import ChainMismatch, VerificationFailed
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table

ALL = ("blocks", "transactions", "logs")
Lie = Callable[[str, Any], Any]


def _change_receipts(change: Callable[[list[Any]], Any]) -> Lie:
    def lie(method: str, result: Any) -> Any:
        if method == "eth_getBlockReceipts" and any(receipt["logs"] for receipt in result):
            change(result)
        return result

    return lie


def _change_blocks(change: Callable[[dict[str, Any]], Any]) -> Lie:
    def lie(method: str, result: Any) -> Any:
        if method == "eth_getBlockByNumber" and len(result["transactions"]) > 1:
            change(result)
        return result

    return lie


def _drop_third(receipts: list[Any]) -> None:
    for receipt in receipts[::3]:
        receipt["logs"] = []


def _swap_logs(receipts: list[Any]) -> None:
    logs = [log for receipt in receipts for log in receipt["logs"]]
    logs[0]["data"], logs[-1]["data"] = logs[-1]["data"] + "00", logs[0]["data"]


def _swap_transactions(block: dict[str, Any]) -> None:
    first, second = block["transactions"][:2]
    for name in ("value", "input", "to"):
        first[name], second[name] = second[name], first[name]
    first["value"] = "0x123456"


LIES: dict[str, Lie] = {
    "drop_all_logs": _change_receipts(lambda rs: [r.update(logs=[]) for r in rs]),
    "drop_a_third_of_the_logs": _change_receipts(_drop_third),
    "swap_logs": _change_receipts(_swap_logs),
    "change_gas": _change_receipts(lambda rs: rs[0].update(gasUsed="0x5209")),
    "change_cumulative_gas": _change_receipts(lambda rs: rs[0].update(cumulativeGasUsed="0x1")),
    "change_status": _change_receipts(
        lambda rs: rs[0].update(status="0x0" if rs[0]["status"] == "0x1" else "0x1")
    ),
    "miscount_log_indices": _change_receipts(
        lambda rs: [log.update(logIndex="0x0") for r in rs for log in r["logs"]]
    ),
    "invent_a_log": _change_receipts(
        lambda rs: next(r["logs"] for r in rs if r["logs"]).append(
            {**next(r["logs"][0] for r in rs if r["logs"]), "logIndex": "0x63"}
        )
    ),
    "change_the_effective_price": _change_receipts(
        lambda rs: rs[0].update(effectiveGasPrice="0x1")
    ),
    "change_a_value": _change_blocks(lambda b: b["transactions"][0].update(value="0x1")),
    "change_the_input": _change_blocks(lambda b: b["transactions"][0].update(input="0xff")),
    "change_the_price": _change_blocks(lambda b: b["transactions"][0].update(gasPrice="0x1")),
    "swap_transactions": _change_blocks(_swap_transactions),
    "drop_a_transaction": _change_blocks(lambda b: b["transactions"].pop()),
    "change_the_miner": _change_blocks(lambda b: b.update(miner="0x" + "11" * 20)),
    "change_the_time": _change_blocks(lambda b: b.update(timestamp="0x1")),
    "change_the_bloom": _change_blocks(lambda b: b.update(logsBloom="0x" + "00" * 256)),
    "change_the_root": _change_blocks(lambda b: b.update(receiptsRoot="0x" + "00" * 32)),
}


@pytest.fixture
def liar(rpc_url: str) -> Generator[FaultyNode]:
    with FaultyNode(rpc_url) as made:
        yield made


def tell(node: FaultyNode, lie: Lie) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if item.get("result"):
                item["result"] = lie(call["method"], item["result"])
        return items

    node.after = after


def read(*urls: str, end: int = 29) -> tuple[dict[str, Any], VerifiedRange]:
    found: dict[str, list[Any]] = {table: [] for table in ALL}
    source = RpcSource(urls, concurrency=1, tries=1, spread=False)
    with RangeReader(source, ALL, VerifyRules("roots")) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(0, end):
            for table in ALL:
                found[table] += build_table(table, chunk, chain_id).to_pylist()
        return found, reader.verified()


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_corrected_by_an_honest_endpoint_or_refused(
    liar: FaultyNode, rpc_url: str, chain: DevChain, name: str
) -> None:
    tell(liar, LIES[name])
    with pytest.raises(ChainMismatch, match=liar.label) as failed:
        read(liar.url)
    assert "block " in str(failed.value)
    rows, verified = read(liar.url, rpc_url)
    assert rows == expected(chain, 0, 29)
    if isinstance(failed.value, VerificationFailed):
        assert {answer.endpoint for answer in verified.rejected} == {liar.label}
        assert "expected" in str(failed.value) and "received" in str(failed.value)


def test_a_rejected_endpoint_is_set_aside_while_others_answer(
    liar: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    tell(liar, LIES["drop_all_logs"])
    _, verified = read(liar.url, rpc_url)
    assert len(verified.rejected) == 1 and verified.rejected[0].field in ("logsBloom", "gasUsed")
    before = len(liar.requests)
    rows, verified = read(liar.url, rpc_url)
    assert rows == expected(chain, 0, 29)
    assert len(liar.requests) == before and verified.rejected == []
    assert verified.first_hash == "0x" + expected(chain, 0, 0)["blocks"][0]["block_hash"].hex()
