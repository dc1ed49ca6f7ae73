"""A node that lies or fails in the way that the path of its URL names, in all methods alike.

It holds a few honest blocks, changes them once per lie, and answers every method from the changed ones: a
reader that asks for logs, for receipts of a block or for single receipts gets the same lie.
"""

import copy
import gzip
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

import orjson

from support.chain.node_server import NodeServer
from trace_etl.devtools.devchain import DevChain

Block, Receipts = dict[str, Any], list[dict[str, Any]]
Change = Callable[[Block, Receipts], None]
LAST = 29
"""The last block that the node serves in the tests."""


@dataclass(frozen=True)
class Fault:
    """What a node does wrong: `change` its blocks, or the bytes, status or results of its answers."""

    change: Change | None = None
    body: Callable[[bytes], bytes] = lambda body: body
    status: Callable[[int], int] = lambda count: 200
    """The HTTP status of an answer, by the number of the request."""
    results: dict[str, Callable[[Any], Any]] | None = None
    """Changes of the results of single methods."""
    heals: bool = False
    """Whether the rows are right after tries without another endpoint."""
    head: int | None = None
    other_chain: bool = False
    """Serve blocks of another fork from block 15 on."""


def _each(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(_: Block, receipts: Receipts) -> None:
        for receipt in receipts:
            change(receipt)

    return apply


def _first_log(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(_: Block, receipts: Receipts) -> None:
        for log in [log for receipt in receipts for log in receipt["logs"]][:1]:
            change(log)

    return apply


def _first_transaction(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(block: Block, _: Receipts) -> None:
        for item in block["transactions"][:1]:
            change(item)

    return apply


def _drop_third(_: Block, receipts: Receipts) -> None:
    for receipt in receipts[::3]:
        receipt["logs"] = []


def _swap_logs(_: Block, receipts: Receipts) -> None:
    logs = [log for receipt in receipts for log in receipt["logs"]]
    if logs:
        logs[0]["data"], logs[-1]["data"] = logs[-1]["data"] + "00", logs[0]["data"]


def _restart_indices(_: Block, receipts: Receipts) -> None:
    for receipt in receipts:
        for index, log in enumerate(receipt["logs"]):
            log["logIndex"] = hex(index)


def _invent_log(_: Block, receipts: Receipts) -> None:
    for receipt in receipts:
        if receipt["logs"]:
            receipt["logs"].append(copy.deepcopy(receipt["logs"][-1]))


def _swap_status(_: Block, receipts: Receipts) -> None:
    for receipt in receipts[:1]:
        receipt["status"] = "0x0" if receipt["status"] == "0x1" else "0x1"


def _drop_transaction(block: Block, receipts: Receipts) -> None:
    if len(block["transactions"]) > 1:
        block["transactions"].pop()
        receipts.pop()


def _swap_transactions(block: Block, _: Receipts) -> None:
    items = block["transactions"]
    if len(items) > 1:
        for name in ("value", "input", "to"):
            items[0][name], items[1][name] = items[1][name], items[0][name]
        items[0]["value"] = "0x123456"


def _swap_receipts(_: Block, receipts: Receipts) -> None:
    if len(receipts) > 1:
        for name in ("gasUsed", "logs", "status"):
            receipts[0][name], receipts[1][name] = receipts[1][name], receipts[0][name]


def _lower_hash(block: Block, receipts: Receipts) -> None:
    number = int(block["number"], 16)
    if number == 12:
        block["hash"] = "0x" + "ab" * 32
        for item in (*block["transactions"], *receipts):
            item["blockHash"] = block["hash"]
            for log in item.get("logs", ()):
                log["blockHash"] = block["hash"]


def _refuse_first(count: int) -> int:
    return 429 if count % 2 else 200


FAULTS: dict[str, Fault] = {
    # receipts and logs
    "logs_dropped": Fault(_each(lambda r: r.update(logs=[]))),
    "a_third_of_logs_dropped": Fault(_drop_third),
    "logs_swapped": Fault(_swap_logs),
    "log_invented": Fault(_invent_log),
    "log_indices_miscounted": Fault(_restart_indices),
    "log_data_changed": Fault(_first_log(lambda log: log.update(data=log["data"] + "00"))),
    "log_topic_changed": Fault(
        _first_log(lambda log: log.update(topics=["0x" + "11" * 32, *log["topics"][1:]]))
    ),
    "log_address_changed": Fault(_first_log(lambda log: log.update(address="0x" + "22" * 20))),
    "cumulative_gas_changed": Fault(_each(lambda r: r.update(cumulativeGasUsed="0x1"))),
    "gas_used_changed": Fault(_each(lambda r: r.update(gasUsed="0x5209"))),
    "status_changed": Fault(_swap_status),
    "status_missing": Fault(_each(lambda r: r.pop("status"))),
    "receipts_swapped": Fault(_swap_receipts),
    "receipts_empty": Fault(lambda block, receipts: receipts.clear()),
    "effective_price_changed": Fault(_each(lambda r: r.update(effectiveGasPrice="0x1"))),
    # transactions
    "value_changed": Fault(_first_transaction(lambda tx: tx.update(value="0x1"))),
    "input_changed": Fault(_first_transaction(lambda tx: tx.update(input="0xff"))),
    "gas_price_changed": Fault(_first_transaction(lambda tx: tx.update(gasPrice="0x1"))),
    "receiver_changed": Fault(_first_transaction(lambda tx: tx.update(to="0x" + "33" * 20))),
    "transaction_dropped": Fault(_drop_transaction),
    "transactions_swapped": Fault(_swap_transactions),
    "chain_id_changed": Fault(results={"eth_chainId": lambda _: "0x5"}),
    # headers
    "miner_changed": Fault(lambda block, _: block.update(miner="0x" + "11" * 20)),
    "time_changed": Fault(lambda block, _: block.update(timestamp="0x1")),
    "bloom_emptied": Fault(lambda block, _: block.update(logsBloom="0x" + "00" * 256)),
    "receipts_root_emptied": Fault(lambda block, _: block.update(receiptsRoot="0x" + "00" * 32)),
    "base_fee_changed": Fault(lambda block, _: block.update(baseFeePerGas="0x7")),
    "hash_invented": Fault(_lower_hash),
    "another_fork_from_block_15": Fault(other_chain=True),
    # failures
    "head_lags": Fault(head=20),
    "block_of_another_number": Fault(
        lambda block, _: block.update(number="0x1") if block["number"] == "0xc" else None
    ),
    "null_receipts": Fault(
        results={
            "eth_getBlockReceipts": lambda _: None,
            "eth_getTransactionReceipt": lambda _: None,
        }
    ),
    "truncated_json": Fault(body=lambda body: body[: len(body) // 2]),
    "half_of_the_requests_refused": Fault(status=_refuse_first, heals=True),
    "server_error": Fault(status=lambda _: 500),
    "html_page": Fault(body=lambda _: b"<html>too many requests</html>"),
}


class LyingNode(NodeServer):
    """Serves blocks 0 to `last` of a chain; `url(lie)` tells a lie, `url("honest")` none."""

    def __init__(self, chain: DevChain, other: DevChain, last: int) -> None:
        self.last, self.chain_id = last, chain.chain_id
        self._honest = [_read(chain, number) for number in range(last + 1)]
        self._other = [_read(other, number) for number in range(last + 1)]
        self._served: dict[str, list[tuple[Block, Receipts]]] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def url(self, name: str) -> str:
        return f"http://{self.label}/{name}"

    def answer_request(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        status, answer = self.answer(handler.path.strip("/"), body)
        handler.send_response(status)
        if "gzip" in handler.headers.get("Accept-Encoding", ""):
            handler.send_header("Content-Encoding", "gzip")
            answer = gzip.compress(answer, 1)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def answer(self, name: str, body: bytes) -> tuple[int, bytes]:
        fault = FAULTS.get(name, Fault())
        with self._lock:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            if name not in self._served:
                self._served[name] = self._make_blocks(fault)
        request = orjson.loads(body)
        calls = request if isinstance(request, list) else [request]
        items = [self._call(name, fault, call) for call in calls]
        answer = orjson.dumps(items if isinstance(request, list) else items[0])
        return fault.status(count), fault.body(answer)

    def _make_blocks(self, fault: Fault) -> list[tuple[Block, Receipts]]:
        blocks = copy.deepcopy(self._honest)
        if fault.other_chain:
            blocks[15:] = copy.deepcopy(self._other[15:])
        for block, receipts in blocks:
            if fault.change:
                fault.change(block, receipts)
        return blocks

    def _call(self, name: str, fault: Fault, call: dict[str, Any]) -> dict[str, Any]:
        result = self._find(self._served[name], fault, call["method"], call.get("params", []))
        if fault.results and call["method"] in fault.results:
            result = fault.results[call["method"]](result)
        return {"jsonrpc": "2.0", "id": call["id"], "result": result}

    def _find(
        self, blocks: list[tuple[Block, Receipts]], fault: Fault, method: str, params: list[Any]
    ) -> Any:
        head = self.last if fault.head is None else fault.head
        tags = {"latest": head, "finalized": head, "safe": head, "earliest": 0, "pending": head}

        def at(tag: Any) -> int:
            return tags[tag] if tag in tags else int(tag, 16)

        if method in ("eth_chainId", "net_version"):
            return hex(self.chain_id) if method == "eth_chainId" else str(self.chain_id)
        if method == "eth_blockNumber":
            return hex(head)
        if method == "eth_getBlockByNumber":
            if at(params[0]) > head:
                return None
            block = blocks[at(params[0])][0]
            hashes = [item["hash"] for item in block["transactions"]]
            return block if params[1] else {**block, "transactions": hashes}
        if method == "eth_getBlockReceipts":
            return blocks[at(params[0])][1] if at(params[0]) <= head else None
        if method == "eth_getTransactionReceipt":
            found = [r for _, rs in blocks for r in rs if r["transactionHash"] == params[0]]
            return found[0] if found else None
        if method == "eth_getLogs":
            span = range(at(params[0]["fromBlock"]), at(params[0]["toBlock"]) + 1)
            return [log for n in span if n <= head for r in blocks[n][1] for log in r["logs"]]
        return None


def new_chain(seed: int = 21) -> DevChain:
    """Return the chain that the node lies about."""
    return DevChain(seed=seed, length=LAST + 1, txs_per_block=6)


@contextmanager
def running_liar() -> Generator[LyingNode]:
    """Run a node with blocks of two forks."""
    with LyingNode(new_chain(), new_chain(22), LAST) as made:
        yield made


def list_pools(node: LyingNode) -> list[str]:
    """Return two RPC pools for each lie, as NAME=URL: the liar alone, and with an honest endpoint."""
    urls: list[str] = []
    for name in FAULTS:
        alone, honest = node.url(name), f"{node.url('honest')}/{name}"
        urls += [f"{name}={alone}", f"{name}_helped={alone}", f"{name}_helped={honest}"]
    return urls


def _read(chain: DevChain, number: int) -> tuple[Block, Receipts]:
    chain.seal_to(number)
    block = chain.block(number)
    assert block is not None
    return orjson.loads(block.full()), orjson.loads(block.all_receipts())
