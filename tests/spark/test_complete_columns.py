"""Every column that a node reports, by set or by name; and errors that say where a value is wrong. No Spark."""

import copy
from collections.abc import Callable, Generator
from typing import Any

import orjson
import pytest
import rlp

from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.forged_blocks import CHAINS, DEPOSIT, FORKS, make_block
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.chain.tables import CHAIN_TABLES, ColumnChoice, list_columns
from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table
from trace_etl.spark.verify.keccak import keccak

ROOTS = VerifyRules("roots")
UNCHECKED = VerifyRules("links", ("header_hash", "log_indices", "gas_used"))
Block = tuple[dict[str, Any], list[dict[str, Any]]]


@pytest.fixture
def node() -> Generator[FaultyNode]:
    with FaultyNode("") as made:
        yield made


def serve(node: FaultyNode, block: Block, uncles: list[dict[str, Any]] | None = None) -> None:
    def answer(calls: Calls) -> Reply:
        results = {
            "eth_getBlockByNumber": block[0],
            "eth_getBlockReceipts": block[1],
            "eth_getUncleByBlockNumberAndIndex": uncles,
        }
        items = [{"id": call["id"], "result": results[call["method"]]} for call in calls]
        for call, item in zip(calls, items, strict=True):
            if call["method"] == "eth_getUncleByBlockNumberAndIndex":
                item["result"] = (uncles or [])[int(call["params"][1], 16)]
            elif call["method"] == "eth_getBlockByNumber" and not call["params"][1]:
                hashes = [item["hash"] for item in block[0]["transactions"]]
                item["result"] = {**block[0], "transactions": hashes}
        return Reply(200, orjson.dumps(items if len(items) > 1 else items[0]))

    node.before = answer


def read(
    node: FaultyNode,
    number: str,
    *tables: str,
    rules: VerifyRules = ROOTS,
    columns: ColumnChoice = "full",
) -> dict[str, list[dict[str, Any]]]:
    source = RpcSource((node.url,), concurrency=1, tries=1)
    with RangeReader(source, tables, rules, columns) as reader:
        [chunk] = reader.chunks(int(number, 16), int(number, 16))
        return {table: build_table(table, chunk, 1, columns).to_pylist() for table in tables}


def integer(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def data(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def digits(text: str | None) -> str | None:
    return None if text is None else str(int(text, 16))


def padded(text: str) -> bytes:
    return int(text, 16).to_bytes(32, "big")


def json(value: Any) -> str | None:
    return orjson.dumps(value).decode() if value else None


OF_BLOCKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{"parent_hash": ("parentHash", data), "uncles_hash": ("sha3Uncles", data)},
    **{"state_root": ("stateRoot", data), "transactions_root": ("transactionsRoot", data)},
    **{"receipts_root": ("receiptsRoot", data), "logs_bloom": ("logsBloom", data)},
    **{"gas_limit": ("gasLimit", integer), "difficulty": ("difficulty", integer)},
    **{"total_difficulty_string": ("totalDifficulty", digits), "size": ("size", integer)},
    **{"total_difficulty_binary": ("totalDifficulty", padded)},
    **{"mix_hash": ("mixHash", data), "nonce": ("nonce", data)},
    **{"withdrawals_root": ("withdrawalsRoot", data), "blob_gas_used": ("blobGasUsed", integer)},
    **{"excess_blob_gas": ("excessBlobGas", integer), "requests_hash": ("requestsHash", data)},
    **{"parent_beacon_block_root": ("parentBeaconBlockRoot", data)},
    **{"transaction_count": ("transactions", len)},
    **{"base_fee_per_gas_string": ("baseFeePerGas", digits)},
}
OF_TRANSACTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{"block_hash": ("blockHash", data), "v": ("v", integer), "r": ("r", padded)},
    **{"s": ("s", padded), "access_list": ("accessList", json)},
    **{"authorization_list": ("authorizationList", json)},
    **{"blob_versioned_hashes": ("blobVersionedHashes", json)},
    **{"max_fee_per_blob_gas": ("maxFeePerBlobGas", integer)},
    **{"gas_price_string": ("gasPrice", digits)},
    **{"max_fee_per_gas_string": ("maxFeePerGas", digits)},
}
OF_RECEIPTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{"contract_address": ("contractAddress", data), "root": ("root", data)},
    **{"cumulative_gas_used": ("cumulativeGasUsed", integer), "l1_fee": ("l1Fee", integer)},
    **{"effective_gas_price": ("effectiveGasPrice", integer)},
    **{"l1_fee_scalar": ("l1FeeScalar", lambda text: text)},
    **{"l1_block_number": ("l1BlockNumber", integer)},
}
OF_DEPOSITS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{"source_hash": ("sourceHash", data), "mint_string": ("mint", digits)},
    **{"nonce": ("nonce", integer), "gas_price": ("gasPrice", integer)},
}
OF_LAYER_2: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{"deposit_nonce": ("depositNonce", integer), "l1_fee": ("l1Fee", integer)},
    **{"l1_gas_used": ("l1GasUsed", integer), "gas_used_for_l1": ("gasUsedForL1", integer)},
    **{"l1_block_number": ("l1BlockNumber", integer)},
    **{"contract_address": ("contractAddress", data)},
}


def assert_columns(
    row: dict[str, Any], source: dict[str, Any], names: dict[str, tuple[str, Callable[[Any], Any]]]
) -> None:
    for column, (field, convert) in names.items():
        assert row[column] == convert(source.get(field)), column


@pytest.mark.parametrize("fork", FORKS)
def test_full_columns_hold_what_the_node_reported(node: FaultyNode, fork: str) -> None:
    block, receipts = copy.deepcopy(make_block(fork))
    receipts[0] |= {"l1Fee": "0x7", "l1FeeScalar": "0.684", "l1BlockNumber": "0x10"}
    serve(node, (block, receipts))
    rows = read(node, block["number"], "blocks", "transactions", "logs")
    assert_columns(rows["blocks"][0], block, OF_BLOCKS)
    for row, item, receipt in zip(
        rows["transactions"], block["transactions"], receipts, strict=True
    ):
        assert_columns(row, item, OF_TRANSACTIONS)
        assert_columns(row, receipt, OF_RECEIPTS)
        assert row["timestamp"] == integer(block["timestamp"])
        assert row["n_rlp_bytes"] > len(row["input"]) + 80
    first = rows["transactions"][1]  # a legacy transaction, encoded by another library
    fields = ("nonce", "gasPrice", "gas", "to", "value", "input", "v", "r", "s")
    raw = [block["transactions"][1][name] for name in fields]
    items = [data(t) if n in (3, 5) else to_bytes(integer(t)) for n, t in enumerate(raw)]
    assert first["n_rlp_bytes"] == len(rlp.encode(items))
    for row in rows["logs"]:
        assert (row["block_hash"], row["timestamp"]) == (
            data(block["hash"]),
            integer(block["timestamp"]),
        )
    for table in rows:
        names = [column.name for column in list_columns(table)]
        assert [list(row) for row in rows[table]] == [names] * len(rows[table])
        standard = [column.name for column in CHAIN_TABLES[table]]
        assert names[: len(standard)] == standard  # new columns are added at the end


@pytest.mark.parametrize("chain", CHAINS)
def test_full_columns_hold_what_other_chains_add(node: FaultyNode, chain: str) -> None:
    block, receipts = make_block(chain)
    serve(node, (block, receipts))
    rules = VerifyRules("roots", CHAINS[chain][:1])
    rows = read(node, block["number"], "transactions", rules=rules)["transactions"]
    for row, item, receipt in zip(rows, block["transactions"], receipts, strict=True):
        assert_columns(row, item, OF_DEPOSITS)
        assert_columns(row, receipt, OF_LAYER_2)
        kind = int(item["type"], 16)
        if kind == DEPOSIT:
            assert row["n_rlp_bytes"] == len(encode_deposit(item))
            assert row["source_hash"] is not None and row["deposit_nonce"] == row["nonce"]
        else:  # one unknown type does not take the sizes of the others
            assert (row["n_rlp_bytes"] is None) == (kind > 4)


def encode_deposit(item: dict[str, Any]) -> bytes:
    fields = [data(item["sourceHash"]), data(item["from"]), data(item["to"]) or b""]
    fields += [to_bytes(integer(item.get(name, "0x0"))) for name in ("mint", "value", "gas")]
    fields += [b"\x01" if item.get("isSystemTx") else b"", data(item["input"])]
    return b"\x7e" + rlp.encode(fields)


def test_one_transaction_without_a_signature_does_not_take_the_sizes_of_others(
    node: FaultyNode,
) -> None:
    block, receipts = copy.deepcopy(make_block("london"))
    del block["transactions"][1]["r"]
    serve(node, (block, receipts))
    rows = read(node, block["number"], "transactions", rules=UNCHECKED)["transactions"]
    assert [row["n_rlp_bytes"] is None for row in rows] == [n == 1 for n in range(len(rows))]


def to_bytes(number: int | None) -> bytes:
    assert number is not None
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


@pytest.mark.parametrize(
    ("choice", "added"),
    [("minimal", set()), ("standard", {"author", "gas_used", "extra_data"}), (("size",), {"size"})],
)
def test_a_set_or_names_choose_the_columns(
    node: FaultyNode, choice: ColumnChoice, added: set[str]
) -> None:
    block = make_block("cancun")
    serve(node, block)
    [row] = read(node, block[0]["number"], "blocks", columns=choice)["blocks"]
    assert {"block_number", "block_hash", "timestamp"} | added <= row.keys()
    assert ("size" in row) == ("size" in added) and ("author" in row) == ("author" in added)


def test_uncles_are_a_table(node: FaultyNode) -> None:
    headers = [make_block("byzantium", seed)[0] for seed in (1, 2)]
    block, receipts = copy.deepcopy(make_block("byzantium"))
    names = (
        *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot"),
        *("logsBloom", "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData"),
        *("mixHash", "nonce"),
    )
    numbers = ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")

    def encode(header: dict[str, Any]) -> list[bytes]:
        return [to_bytes(integer(header[n])) if n in numbers else data(header[n]) for n in names]

    block["uncles"] = [header["hash"] for header in headers]
    block["sha3Uncles"] = "0x" + keccak(rlp.encode([encode(h) for h in headers])).hex()
    block["hash"] = "0x" + keccak(rlp.encode(encode(block))).hex()
    serve(node, (block, receipts), headers)
    rows = read(node, block["number"], "uncles")["uncles"]
    assert [row["uncle_hash"] for row in rows] == [data(header["hash"]) for header in headers]
    assert [(row["uncle_index"], row["author"]) for row in rows] == [
        (n, data(header["miner"])) for n, header in enumerate(headers)
    ]
    headers[1]["miner"] = "0x" + "11" * 20
    with pytest.raises(ChainMismatch, match="hash: expected"):
        read(node, block["number"], "uncles")


def test_a_fee_of_more_than_63_bits_does_not_stop_its_block(node: FaultyNode) -> None:
    block, receipts = copy.deepcopy(make_block("london"))
    block["transactions"][-1]["maxFeePerGas"] = hex(2**200)
    serve(node, (block, receipts))
    row = read(node, block["number"], "transactions", rules=UNCHECKED)["transactions"][-1]
    assert row["max_fee_per_gas"] == 2**63 - 1
    assert row["max_fee_per_gas_string"] == str(2**200)


@pytest.mark.parametrize(("field", "column"), [("nonce", "nonce"), ("from", "from_address")])
def test_a_missing_value_is_reported_with_column_transaction_and_endpoint(
    node: FaultyNode, field: str, column: str
) -> None:
    block, receipts = copy.deepcopy(make_block("london"))
    del block["transactions"][1][field]
    serve(node, (block, receipts))
    name = block["transactions"][1]["hash"]
    where = (
        f"transactions.{column}: transaction {name} of block .* at {node.label}: a value is missing"
    )
    with pytest.raises(ChainMismatch, match=where):
        read(node, block["number"], "transactions", rules=UNCHECKED)


@pytest.mark.parametrize("field", ["type", "gasPrice"])
def test_a_missing_type_or_price_is_never_zero(node: FaultyNode, field: str) -> None:
    block, receipts = copy.deepcopy(make_block("london"))
    del block["transactions"][1][field]
    serve(node, (block, receipts))
    name = block["transactions"][1]["hash"]
    for rules in (UNCHECKED, ROOTS):
        if (field, rules) == ("type", ROOTS):
            continue  # the transactions root proves that it is 0
        with pytest.raises(ChainMismatch, match=f"{field} of transaction {name}") as failed:
            read(node, block["number"], "transactions", rules=rules)
        assert node.label in str(failed.value)
