"""Blocks of every fork verify, and a single changed bit in any consensus field is detected. No Spark."""

import copy
from collections.abc import Generator, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.forged_blocks import CHAINS, DEPOSIT, FORKS, make_block
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.chain.tables import ColumnChoice
from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.fetch import RangeReader, RpcSource

pytestmark = pytest.mark.usefixtures("each_implementation")

TABLES = ("blocks", "transactions", "logs", "withdrawals")
STRICT = VerifyRules("roots", senders=True)
# Values that no header commits to, and that are no columns of verified tables.
UNPROVEN = {"totalDifficulty", "size", "uncles"}
OF_LAYER_2 = {"l1Fee", "l1GasUsed", "gasUsedForL1", "l1BlockNumber"}
Block = tuple[dict[str, Any], list[dict[str, Any]]]


class OneBlock:
    """A node that serves one block."""

    def __init__(self, node: FaultyNode) -> None:
        self.node = node
        node.before = self._answer

    def serve(self, block: Block) -> None:
        self.block, self.receipts = block

    def read(
        self,
        rules: VerifyRules = STRICT,
        tables: tuple[str, ...] = TABLES,
        columns: ColumnChoice = "standard",
    ) -> BlockChunk:
        number = self.number
        source = RpcSource((self.node.url,), concurrency=1, tries=1)
        with RangeReader(source, tables, rules, columns) as reader:
            [chunk] = reader.chunks(number, number)
        return chunk

    def _answer(self, calls: Calls) -> Reply:
        [call] = calls
        method = call["method"]
        logs = [log for receipt in self.receipts for log in receipt["logs"]]
        results = {
            "eth_getBlockByNumber": self.block,
            "eth_getBlockReceipts": self.receipts,
            "eth_getLogs": logs,
        }
        result = results[method]
        if method == "eth_getBlockByNumber" and not call["params"][1]:
            hashes = [tx["hash"] for tx in self.block["transactions"]]
            result = {**self.block, "transactions": hashes}
        return Reply(200, orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}))

    @property
    def number(self) -> int:
        return self._number

    _number = 0


@pytest.fixture(scope="module")
def node() -> Generator[OneBlock]:
    with FaultyNode("") as made:
        yield OneBlock(made)


def serve(node: OneBlock, fork: str, seed: int = 0) -> Block:
    block = make_block(fork, seed)
    node.serve(block)
    node._number = int(block[0]["number"], 16)  # pyright: ignore[reportPrivateUsage]
    return block


@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("seed", range(3))
def test_a_block_of_every_fork_verifies(node: OneBlock, fork: str, seed: int) -> None:
    block, receipts = serve(node, fork, seed)
    tables = TABLES if "withdrawals" in block else TABLES[:3]
    chunk = node.read(tables=tables)
    assert len(chunk.transactions) == len(receipts)
    for level in ("links", "bloom", "roots"):
        node.read(VerifyRules(level), tables)
        node.read(VerifyRules(level), ("logs",))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("seed", range(2))
def test_a_block_of_another_chain_verifies_with_its_preset(
    node: OneBlock, chain: str, seed: int
) -> None:
    block, receipts = serve(node, chain, seed)
    tables = TABLES if "withdrawals" in block else TABLES[:3]
    chunk = node.read(make_rules(chain), tables)
    assert len(chunk.transactions) == len(receipts)
    for level in ("links", "bloom", "roots"):
        node.read(VerifyRules(level, CHAINS[chain][:1]), ("logs",))


@pytest.mark.parametrize(
    ("chain", "message"),
    [("optimism since isthmus", "withdrawalsRoot"), ("arbitrum", "has type 0x64")],
)
def test_a_block_of_another_chain_needs_its_preset(
    node: OneBlock, chain: str, message: str
) -> None:
    serve(node, chain)
    tables = TABLES if CHAINS[chain][0] == "optimism" else TABLES[:3]
    with pytest.raises(ChainMismatch, match=message):
        node.read(tables=tables)


def make_rules(name: str) -> VerifyRules:
    return VerifyRules("roots", CHAINS[name][:1] if name in CHAINS else (), senders=True)


def list_values(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all hexadecimal values."""
    if isinstance(item, dict):
        for name, value in item.items():
            if name not in UNPROVEN:
                yield from list_values(value, (*path, name))
    elif isinstance(item, list | tuple):
        for index, value in enumerate(item):
            yield from list_values(value, (*path, index))
    elif isinstance(item, str) and len(item) > 2:
        yield path


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from((*FORKS, *CHAINS)), st.integers(0, 2), st.randoms(use_true_random=False))
def test_a_single_changed_bit_is_detected(
    node: OneBlock, name: str, seed: int, random: Any
) -> None:
    block = copy.deepcopy(serve(node, name, seed))
    path = random.choice([path for path in list_values(block) if is_proven(name, block, path)])
    changed = flip_bit(block, path, random)
    node.serve(block)
    tables = TABLES if "withdrawals" in block[0] else TABLES[:3]
    with pytest.raises(ChainMismatch):
        node.read(make_rules(name), tables)
        pytest.fail(f"{path}: {changed} was accepted")


def is_proven(name: str, block: Block, path: tuple[Any, ...]) -> bool:
    """Whether the header commits to a value, as documented in docs/how-to/proven-data.md."""
    preset, field = CHAINS.get(name, (None,))[0], path[-1]
    is_receipt = path[0] == 1
    if is_receipt and path[2:] == ("blockNumber",):
        return False  # the block number of a receipt is not read
    if preset is None or not (is_receipt or path[1] == "transactions"):
        return True
    index = path[1] if is_receipt else path[2]
    is_deposit = block[1][index]["type"] == hex(DEPOSIT)
    if is_receipt:
        if field == "depositNonce":
            return "depositReceiptVersion" in block[1][index]
        if field == "contractAddress":
            return preset == "optimism" and not is_deposit
        return field not in {*OF_LAYER_2, "effectiveGasPrice"}
    if preset == "arbitrum":
        return field in {"hash", "blockHash", "blockNumber", "transactionIndex"}
    if is_deposit:
        return field not in {"nonce", "gasPrice", "v", "r", "s"}
    return field != "gasPrice" or block[1][index]["type"] in {"0x0", "0x1"}


def flip_bit(block: Any, path: tuple[Any, ...], random: Any) -> str:
    """Change one bit of a value, and return the old and the new text."""
    *steps, last = path
    for step in steps:
        block = block[step]
    old: str = block[last]
    digit = random.randrange(2, len(old))
    new = format(int(old[digit], 16) ^ (1 << random.randrange(4)), "x")
    block[last] = old[:digit] + new + old[digit + 1 :]
    return f"{old} → {block[last]}"


@pytest.mark.parametrize("fork", ["frontier", "london", "prague"])
def test_missing_and_exchanged_content_is_detected(node: OneBlock, fork: str) -> None:
    def drop_log(block: Block) -> None:
        next(receipt["logs"] for receipt in block[1] if receipt["logs"]).pop()

    def drop_all_logs(block: Block) -> None:
        for receipt in block[1]:
            receipt["logs"] = []

    def drop_transaction(block: Block) -> None:
        block[0]["transactions"].pop()
        block[1].pop()

    def exchange_data(block: Block) -> None:
        block[0]["transactions"][0]["value"] = block[0]["transactions"][1]["value"]

    def use_another_state_root(block: Block) -> None:
        block[0]["stateRoot"] = block[0]["parentHash"]

    for change in (
        drop_log,
        drop_all_logs,
        drop_transaction,
        exchange_data,
        use_another_state_root,
    ):
        block = copy.deepcopy(serve(node, fork))
        change(block)
        node.serve(block)
        with pytest.raises(ChainMismatch, match=rf"block {node.number} \(0x"):
            node.read(VerifyRules("roots"), TABLES[:3])


def test_the_bloom_level_detects_missing_logs_without_receipts(node: OneBlock) -> None:
    block = copy.deepcopy(serve(node, "london"))
    block[1][-1]["logs"].pop()
    node.serve(block)
    node.read(VerifyRules("links"), ("logs",))
    with pytest.raises(ChainMismatch, match="logsBloom: expected 0x"):
        node.read(VerifyRules("bloom"), ("logs",))


@pytest.mark.parametrize("name", ["london", "arbitrum"])
def test_the_count_of_transactions_is_proven_without_their_table(node: OneBlock, name: str) -> None:
    block, receipts = copy.deepcopy(serve(node, name))
    rules = VerifyRules("roots", CHAINS[name][:1] if name in CHAINS else ())
    columns = ("transaction_count",)
    assert len(node.read(rules, ("blocks",), columns).receipts) == len(receipts)
    block["transactions"].pop()
    for left in (receipts, receipts[:-1]):
        node.serve((block, left))
        with pytest.raises(ChainMismatch):
            node.read(rules, ("blocks",), columns)
    node.read(rules, ("blocks",))  # receipts are not read for the other columns
    node.read(VerifyRules("bloom"), ("blocks",), columns)


def test_an_exception_skips_its_check_only(node: OneBlock) -> None:
    block = copy.deepcopy(serve(node, "london"))
    block[1][-1]["logs"][-1]["data"] = "0x00"
    node.serve(block)
    with pytest.raises(ChainMismatch, match="receiptsRoot"):
        node.read(VerifyRules("roots"), TABLES[:3])
    node.read(VerifyRules("roots", ("receipts_root",)), TABLES[:3])
    block[1][-1]["logs"][-1]["address"] = "0x" + "11" * 20
    with pytest.raises(ChainMismatch, match="logsBloom"):
        node.read(VerifyRules("roots", ("receipts_root",)), TABLES[:3])
    node.read(VerifyRules("roots", ("zksync",)), TABLES[:3])


def test_a_state_sync_transaction_is_left_out_of_the_roots_if_declared(node: OneBlock) -> None:
    block = copy.deepcopy(serve(node, "london"))
    number, zero = len(block[1]), "0x" + "00" * 20
    place = {"blockHash": block[0]["hash"], "blockNumber": block[0]["number"]}
    extra = {**block[0]["transactions"][0], "hash": "0x" + "77" * 32, "from": zero, "to": zero}
    block[0]["transactions"].append({**extra, "transactionIndex": hex(number)})
    last = max(int(log["logIndex"], 16) for r in block[1] for log in r["logs"])
    log = {
        **{"address": "0x" + "10" * 20, "topics": [], "data": "0x", "logIndex": hex(last + 1)},
        **{"transactionHash": extra["hash"], "transactionIndex": hex(number), **place},
    }
    block[1].append(
        {
            **{"transactionHash": extra["hash"], "transactionIndex": hex(number), **place},
            **{"from": zero, "to": zero, "status": "0x1", "type": "0x0", "logs": [log]},
            **{"gasUsed": "0x0", "cumulativeGasUsed": block[1][-1]["cumulativeGasUsed"]},
        }
    )
    node.serve(block)
    with pytest.raises(ChainMismatch):
        node.read(VerifyRules("roots"), TABLES[:3])
    assert len(node.read(VerifyRules("roots", ("polygon",)), TABLES[:3]).transactions) == number + 1
    node.read(VerifyRules("bloom", ("polygon",)), ("logs",))
    block[1][1]["cumulativeGasUsed"] = "0x1"
    with pytest.raises(ChainMismatch, match="cumulativeGasUsed"):
        node.read(VerifyRules("roots", ("polygon",)), TABLES[:3])


def test_a_missing_type_is_accepted_only_if_the_root_proves_it(node: OneBlock) -> None:
    block = copy.deepcopy(serve(node, "byzantium"))
    for item in (*block[0]["transactions"], *block[1]):
        del item["type"]
    node.serve(block)
    node.read(VerifyRules("roots"), TABLES[:3])
    name = block[0]["transactions"][0]["hash"]
    with pytest.raises(ChainMismatch, match=f"type of transaction {name}: a value is missing"):
        node.read(VerifyRules("bloom"), TABLES[:3])


def test_an_address_of_a_contract_that_was_not_created_is_detected(node: OneBlock) -> None:
    block = copy.deepcopy(serve(node, "prague"))
    called = [n for n, tx in enumerate(block[0]["transactions"]) if tx["to"]]
    block[1][called[0]]["contractAddress"] = "0x" + "44" * 20
    node.serve(block)
    with pytest.raises(ChainMismatch, match=r"contractAddress of transaction .* expected null"):
        node.read()
    node.read(VerifyRules("roots", ("contract_address",)))


@pytest.mark.parametrize("fork", ["byzantium", "london"])
def test_transactions_that_sign_another_chain_are_detected(node: OneBlock, fork: str) -> None:
    block = serve(node, fork)
    source = RpcSource((node.node.url,), concurrency=1, tries=1)
    for chain_id, is_right in ((1, True), (5, False)):
        with RangeReader(source, TABLES[:3], STRICT) as reader:
            reader._chain_id = chain_id  # pyright: ignore[reportPrivateUsage]
            if is_right:
                list(reader.chunks(node.number, node.number))
                continue
            with pytest.raises(ChainMismatch, match="is for chain 1, but eth_chainId answered 5"):
                list(reader.chunks(node.number, node.number))
    assert block
