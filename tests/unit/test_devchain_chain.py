"""The development chain, checked only through its JSON."""

from collections import Counter
from typing import Any

import orjson
import pytest
import rlp

from trace_etl.devtools.devchain import DevChain, ReorgAt
from trace_etl.devtools.devchain.chain.blocks import Unsealed
from trace_etl.devtools.devchain.chain.trie import ordered_root
from trace_etl.spark.verify.keccak import keccak

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


def _sealed(*args: Any, **kwargs: Any) -> DevChain:
    chain = DevChain(*args, **kwargs)
    chain.seal_to(chain.head)
    return chain


def _block(chain: DevChain, number: int) -> dict[str, Any]:
    block = chain.block(number)
    assert block is not None
    return orjson.loads(block.full())


def _receipts(chain: DevChain, number: int) -> list[dict[str, Any]]:
    block = chain.block(number)
    assert block is not None
    return orjson.loads(block.all_receipts())


def _hashes(chain: DevChain) -> list[str]:
    return [_block(chain, number)["hash"] for number in range(chain.head + 1)]


def _data(text: str | None) -> bytes:
    return bytes.fromhex(text[2:]) if text else b""


def _header(block: dict[str, Any]) -> list[int | bytes]:
    fields = [
        *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot"),
        *("logsBloom", "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData"),
        *("mixHash", "nonce", "baseFeePerGas"),
    ]
    numbers = {"difficulty", "number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas"}
    return [int(block[f], 16) if f in numbers else _data(block[f]) for f in fields]


def _raw_transaction(tx: dict[str, Any]) -> bytes:
    def number(name: str) -> int:
        return int(tx[name], 16)

    call = [number("gas"), _data(tx["to"]), number("value"), _data(tx["input"])]
    signature = [number("r"), number("s")]
    if tx["type"] == "0x0":
        return rlp.encode([number("nonce"), number("gasPrice"), *call, number("v"), *signature])
    fees = [number("maxPriorityFeePerGas"), number("maxFeePerGas")]
    head = [number("chainId"), number("nonce"), *fees]
    return b"\x02" + rlp.encode([*head, *call, [], number("yParity"), *signature])


def _bloom(logs: list[dict[str, Any]]) -> str:
    bits = bytearray(256)
    for value in (v for log in logs for v in (log["address"], *log["topics"])):
        digest = keccak(_data(value))
        for pair in (digest[0:2], digest[2:4], digest[4:6]):
            bit = int.from_bytes(pair, "big") % 2_048
            bits[255 - bit // 8] |= 1 << bit % 8
    return "0x" + bits.hex()


def _raw_receipt(receipt: dict[str, Any]) -> bytes:
    logs = [
        [_data(log["address"]), [_data(topic) for topic in log["topics"]], _data(log["data"])]
        for log in receipt["logs"]
    ]
    status, gas = int(receipt["status"], 16), int(receipt["cumulativeGasUsed"], 16)
    encoded = rlp.encode([status, gas, _data(receipt["logsBloom"]), logs])
    return b"\x02" + encoded if receipt["type"] == "0x2" else encoded


def test_every_block_has_a_correct_hash_and_parent_hash() -> None:
    chain = _sealed(seed=3, length=120)
    parent = "0x" + "00" * 32
    for number in range(120):
        block = _block(chain, number)
        assert block["number"] == hex(number)
        assert block["parentHash"] == parent
        assert block["hash"] == "0x" + keccak(rlp.encode(_header(block))).hex()
        parent = block["hash"]


def test_transactions_match_their_hashes_and_the_transactions_root() -> None:
    chain = _sealed(seed=3, length=60, txs_per_block=12)
    for number in range(60):
        block = _block(chain, number)
        raw = [_raw_transaction(tx) for tx in block["transactions"]]
        assert [tx["hash"] for tx in block["transactions"]] == ["0x" + keccak(r).hex() for r in raw]
        assert block["transactionsRoot"] == "0x" + ordered_root(raw).hex()
        assert {tx["blockHash"] for tx in block["transactions"]} <= {block["hash"]}


def test_receipts_match_the_receipts_root_and_the_gas_totals() -> None:
    chain = _sealed(seed=3, length=60, txs_per_block=12)
    for number in range(60):
        block, receipts = _block(chain, number), _receipts(chain, number)
        logs = [log for receipt in receipts for log in receipt["logs"]]
        gas = [int(receipt["gasUsed"], 16) for receipt in receipts]
        assert block["receiptsRoot"] == "0x" + ordered_root(list(map(_raw_receipt, receipts))).hex()
        assert [r["logsBloom"] for r in receipts] == [_bloom(r["logs"]) for r in receipts]
        assert block["logsBloom"] == _bloom(logs)
        assert [int(log["logIndex"], 16) for log in logs] == list(range(len(logs)))
        assert int(block["gasUsed"], 16) == sum(gas) <= int(block["gasLimit"], 16)
        assert [int(r["cumulativeGasUsed"], 16) for r in receipts] == [
            sum(gas[: position + 1]) for position in range(len(gas))
        ]


def test_a_receipt_matches_its_transaction() -> None:
    chain = _sealed(seed=3, length=60, txs_per_block=12)
    for number in range(60):
        block = _block(chain, number)
        base_fee = int(block["baseFeePerGas"], 16)
        for tx, receipt in zip(block["transactions"], _receipts(chain, number), strict=True):
            same = ("from", "to", "type", "blockHash", "blockNumber", "transactionIndex")
            assert [receipt[f] for f in same] == [tx[f] for f in same]
            assert receipt["transactionHash"] == tx["hash"]
            assert receipt["effectiveGasPrice"] == tx["gasPrice"]
            assert base_fee <= int(tx["gasPrice"], 16)
            assert int(receipt["gasUsed"], 16) <= int(tx["gas"], 16)
            assert (receipt["contractAddress"] is not None) == (
                tx["to"] is None and receipt["status"] == "0x1"
            )


def test_the_size_of_a_block_is_the_size_of_its_encoding() -> None:
    chain = _sealed(seed=3, length=20, txs_per_block=12)
    block = max((_block(chain, n) for n in range(20)), key=lambda b: len(b["transactions"]))
    raw = [_raw_transaction(tx) for tx in block["transactions"]]
    assert {r[0] >= 0xC0 for r in raw} == {True, False}  # both legacy and typed transactions
    body = [rlp.decode(r) if r[0] >= 0xC0 else r for r in raw]
    assert int(block["size"], 16) == len(rlp.encode([_header(block), body, []]))


def test_the_same_seed_makes_the_same_chain_and_another_seed_another_one() -> None:
    first, second = _sealed(seed=11, length=30), _sealed(seed=11, length=30)
    assert [_block(first, n) for n in range(30)] == [_block(second, n) for n in range(30)]
    assert [_receipts(first, n) for n in range(30)] == [_receipts(second, n) for n in range(30)]
    assert not set(_hashes(first)) & set(_hashes(_sealed(seed=12, length=30)))


def test_a_longer_chain_starts_with_the_shorter_one() -> None:
    assert _hashes(_sealed(seed=11, length=60))[:30] == _hashes(_sealed(seed=11, length=30))


def test_the_chain_of_seed_7_does_not_change_between_releases() -> None:
    known = "0x9bdf2768312cdfb6b9cd25e6255ce5720f99bdcbd5c970ff8126eb4fb394d20d"
    assert _block(_sealed(seed=7, length=101), 100)["hash"] == known


def test_the_chain_has_a_variety_of_logs_and_transactions() -> None:
    chain = _sealed(seed=7, length=600, txs_per_block=8)
    receipts = [receipt for number in range(600) for receipt in _receipts(chain, number)]
    logs = [log for receipt in receipts for log in receipt["logs"]]
    shapes = Counter(
        (log["topics"][0] if log["topics"] else None, len(log["topics"])) for log in logs
    )
    assert shapes[TRANSFER, 3] > shapes[TRANSFER, 4] > 100
    assert shapes[None, 0] > 0
    assert len(shapes) == 7
    assert len({log["address"] for log in logs if log["topics"][:1] == [TRANSFER]}) >= 8
    assert any(log["data"] == "0x" for log in logs)
    assert {receipt["status"] for receipt in receipts} == {"0x0", "0x1"}
    assert {receipt["type"] for receipt in receipts} == {"0x0", "0x2"}
    assert any(receipt["contractAddress"] for receipt in receipts)
    assert any(not _block(chain, number)["transactions"] for number in range(1, 600))


def test_a_few_receivers_get_most_of_the_transfers() -> None:
    chain = _sealed(seed=7, length=400, txs_per_block=8)
    received = Counter(
        log["topics"][2]
        for number in range(400)
        for receipt in _receipts(chain, number)
        for log in receipt["logs"]
        if log["topics"][:1] == [TRANSFER] and len(log["topics"]) == 3
    )
    top = [count for _, count in received.most_common(10)]
    assert top[0] > 3 * top[9]
    assert sum(top) > sum(received.values()) / 4
    assert len(received) > 300


@pytest.mark.parametrize("txs_per_block", [0, 1, 4, 30])
def test_blocks_have_the_requested_average_number_of_transactions(txs_per_block: int) -> None:
    chain = _sealed(seed=7, length=300, txs_per_block=txs_per_block)
    counts = [len(_block(chain, number)["transactions"]) for number in range(300)]
    assert sum(counts) / 300 == pytest.approx(txs_per_block, rel=0.15)


def test_a_reorganisation_replaces_only_the_last_blocks() -> None:
    chain = _sealed(seed=5, length=50)
    before = _hashes(chain)
    assert chain.reorg(4) == 46
    chain.seal_to(chain.head)
    after = _hashes(chain)
    assert len(after) == 50
    assert after[:46] == before[:46]
    assert not set(after[46:]) & set(before)
    assert all(_block(chain, n)["parentHash"] == after[n - 1] for n in range(1, 50))


def test_a_replaced_block_is_readable_by_hash_but_its_lost_transactions_are_not() -> None:
    chain = _sealed(seed=5, length=50, txs_per_block=10)
    old = [_block(chain, number) for number in range(40, 50)]
    assert all(chain.find_transaction(tx["hash"]) for b in old for tx in b["transactions"])
    chain.reorg(10)
    chain.seal_to(chain.head)
    new = [_block(chain, number) for number in range(40, 50)]
    orphan = chain.block_by_hash(old[-1]["hash"])
    assert orphan is not None
    assert orjson.loads(orphan.full()) == old[-1]
    old_txs = {tx["hash"] for block in old for tx in block["transactions"]}
    new_txs = {tx["hash"] for block in new for tx in block["transactions"]}
    assert old_txs & new_txs
    assert all(chain.find_transaction(tx) is None for tx in old_txs - new_txs)
    assert all(chain.find_transaction(tx) is not None for tx in new_txs)


def test_a_second_reorganisation_creates_a_third_version() -> None:
    chain = _sealed(seed=5, length=20)
    versions = {_block(chain, 19)["hash"]}
    for _ in range(3):
        chain.reorg(2)
        chain.seal_to(chain.head)
        versions.add(_block(chain, 19)["hash"])
    assert len(versions) == 4


def test_a_planned_reorganisation_happens_when_the_head_reaches_it() -> None:
    chain = _sealed(seed=5, length=40, initial=20, reorg_at=ReorgAt(30, 5))
    chain.mine(10)
    chain.seal_to(chain.head)
    before = _hashes(chain)
    assert before == _hashes(_sealed(seed=5, length=30))
    chain.mine(1)
    chain.seal_to(chain.head)
    after = _hashes(chain)
    assert after[:26] == before[:26]
    assert not set(after[26:]) & set(before)
    chain.mine(9)
    chain.seal_to(chain.head)
    assert _hashes(chain)[:31] == after


def test_a_complete_chain_already_contains_its_planned_reorganisation() -> None:
    grown = DevChain(5, 40, initial=1, reorg_at=ReorgAt(30, 5))
    for _ in range(39):
        grown.mine(1)
        grown.seal_to(grown.head)
    assert _hashes(_sealed(seed=5, length=40, reorg_at=ReorgAt(30, 5))) == _hashes(grown)


def test_an_unsealed_block_is_pending_and_a_block_beyond_the_head_is_null() -> None:
    chain = DevChain(seed=5, length=50)
    assert chain.head == 49
    with pytest.raises(Unsealed) as unsealed:
        chain.block(30)
    assert unsealed.value.number == 30
    with pytest.raises(Unsealed):
        chain.block_by_hash("0x" + "11" * 32)
    chain.seal_to(30)
    assert chain.block(30) is not None
    assert chain.block(50) is None
    chain.seal_to(1_000)
    assert chain.block_by_hash("0x" + "11" * 32) is None
    assert chain.find_transaction("0x" + "11" * 32) is None


def test_mining_can_exceed_the_planned_length() -> None:
    chain = _sealed(seed=5, length=10)
    chain.mine(5)
    chain.seal_to(chain.head)
    assert _hashes(chain) == _hashes(_sealed(seed=5, length=15))


def test_a_very_small_cache_changes_no_answer() -> None:
    small, large = _sealed(5, 30, cache_bytes=1), _sealed(5, 30)
    assert [_block(small, n) for n in range(30)] == [_block(large, n) for n in range(30)]
    assert [_receipts(small, n) for n in range(30)] == [_receipts(large, n) for n in range(30)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"length": 0}, "length"),
        ({"initial": 0}, "initial"),
        ({"length": 10, "initial": 11}, "initial"),
        ({"txs_per_block": 201}, "txs_per_block"),
        ({"chain_id": 0}, "chain_id"),
        ({"length": 10, "reorg_at": ReorgAt(10, 1)}, "reorg_at block"),
        ({"length": 10, "reorg_at": ReorgAt(2, 3)}, "reorg_at depth"),
        ({"length": 100, "reorg_at": ReorgAt(90, 65)}, "reorg_at depth"),
    ],
)
def test_an_impossible_chain_is_refused_with_a_reason(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DevChain(**options)


@pytest.mark.parametrize("depth", [0, -1, 10, 65])
def test_a_reorganisation_cannot_reach_the_genesis_or_a_final_block(depth: int) -> None:
    chain = DevChain(seed=5, length=10 if depth < 65 else 100)
    with pytest.raises(ValueError, match="depth"):
        chain.reorg(depth)
