"""Nodes that lie about the content of blocks: an honest endpoint is used instead, or the read fails."""

from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from copy import deepcopy
from random import Random
from typing import Any

import orjson
import pytest

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.lying_node import FAULTS, LAST, LyingNode, new_chain, running_liar
from support.kernels import without_kernels
from trace_etl.api.task.verification import VerifiedRange
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import ChainMismatch, OperatorError, RpcRefused, VerificationFailed
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.evm.tables import build_table

ALL = ("blocks", "transactions", "logs")
Lie = Callable[[str, Any], Any]


def _change_receipts(change: Callable[[list[Any]], Any]) -> Lie:
    def lie(method: str, result: Any) -> Any:
        if method == "eth_getBlockReceipts" and any(receipt["logs"] for receipt in result):
            change(result)
        return result

    return lie


def _swap_logs(receipts: list[Any]) -> None:
    logs = [log for receipt in receipts for log in receipt["logs"]]
    logs[0]["data"], logs[-1]["data"] = logs[-1]["data"] + "00", logs[0]["data"]


LIES: dict[str, Lie] = {
    "drop_all_logs": _change_receipts(lambda rs: [r.update(logs=[]) for r in rs]),
    "swap_logs": _change_receipts(_swap_logs),
}


@pytest.fixture
def liar(rpc_url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[FaultyNode]:
    monkeypatch.setattr(SET_ASIDE, "_until", {})  # the port of another test's liar may be reused
    with FaultyNode(rpc_url) as made:
        yield made


def tell(node: FaultyNode, lie: Lie) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if item.get("result"):
                item["result"] = lie(call["method"], item["result"])
        return items

    node.after = after


def read(
    *urls: str, start: int = 0, end: int = 29, tries: int = 1
) -> tuple[dict[str, Any], VerifiedRange]:
    found: dict[str, list[Any]] = {table: [] for table in ALL}
    source = RpcSource(urls, concurrency=1, tries=tries, initial_delay=0.01, spread=False)
    with RangeReader(source, ALL, VerifyRules("roots")) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(start, end):
            for table in ALL:
                found[table] += build_table(table, chunk, chain_id).to_pylist()
        return found, reader.verified()


@pytest.fixture(scope="module")
def node_of_lies() -> Generator[LyingNode]:
    with running_liar() as made:
        yield made


# The attempts of a task correct these: `tests/e2e/test_liars.py`.
_OF_TASKS = {"chain_id_changed", "another_fork_from_block_15", "head_lags"}


@pytest.mark.parametrize(
    "name", [name for name in FAULTS if name not in _OF_TASKS and not FAULTS[name].heals]
)
def test_a_lie_is_corrected_by_an_honest_endpoint_or_refused(
    node_of_lies: LyingNode, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(SET_ASIDE, "_until", {})
    liar, honest = node_of_lies.url(name), node_of_lies.url("honest")
    with pytest.raises(OperatorError, match=node_of_lies.label) as failed:
        read(liar, end=LAST)
    rows, verified = read(liar, honest, end=LAST, tries=4)
    assert rows == expected(new_chain(), 0, LAST)
    if isinstance(failed.value, VerificationFailed):
        assert {answer.endpoint for answer in verified.rejected} == {node_of_lies.label}
        for word in ("block ", "expected", "received"):
            assert word in str(failed.value)


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


_VALUES = (
    *(
        None,
        True,
        0,
        -1,
        2**64 - 1,
        1.5,
        "",
        "0x",
        "0x0",
        "0x-1",
        "-0x1",
        "0x_1",
        "0x1",
        "x",
        "0x0" * 40,
    ),
    *("0x" + "f" * 64, "0x" + "f" * 5000, "0x" + "00" * 20, "0x" + "11" * 32, "0x" + "00" * 256),
    *([], {}, [None], [[]], [{}], {"result": None}, "0xé", "\ud7ff\u0000"),
)


def _list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from _list_places(item, (*path, key))


def _change_anything(random: Random, items: Any) -> str:
    """Change, remove, repeat or exchange one value at a random place; return a description."""
    path = random.choice(list(_list_places(items)))
    parent = items
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], random.choice(("set", "set", "set", "remove", "repeat", "exchange"))
    if kind == "remove":
        del parent[key]
    elif kind == "repeat" and isinstance(parent, list):
        parent.insert(key, deepcopy(parent[key]))
    elif kind == "exchange":
        other = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        parent[key], parent[other] = parent[other], parent[key]
    else:
        parent[key] = random.choice(_VALUES)
    return f"{kind} {path}"


@pytest.mark.parametrize("has_kernels", [True, False])
def test_no_change_of_any_value_is_written_or_stops_the_reader(
    liar: FaultyNode, chain: DevChain, has_kernels: bool
) -> None:
    """Whatever one value is replaced with, the rows are right, or the answer is rejected."""
    honest = {
        table: [_drop_unproven(row) for row in rows]
        for table, rows in expected(chain, 6, 7).items()
    }
    random = Random(11)
    told: list[str] = []

    def after(calls: Calls, items: Calls) -> Calls:
        changed: Any = items
        if calls[0]["method"] == _METHODS[len(told) % 2] and not liar_told[0]:
            liar_told[0] = True
            told.append(_change_anything(random, changed))
        return changed

    liar_told, refused = [True], 0
    liar.after = after
    with nullcontext() if has_kernels else without_kernels():
        for _ in range(400):
            liar_told[0] = False
            try:
                found = read(liar.url, start=6, end=7)[0]
            except OperatorError as error:
                assert isinstance(error, ChainMismatch | RpcRefused), (told[-1], error)
                refused += 1
            else:
                rows = {table: list(map(_drop_unproven, found[table])) for table in ALL}
                assert rows == honest, told[-1]
    assert refused > 200


_METHODS = ("eth_getBlockByNumber", "eth_getBlockReceipts")


def _drop_unproven(row: dict[str, Any]) -> dict[str, Any]:
    unproven = ("from_address", "size")
    return {
        name: value
        for name, value in row.items()
        if name not in unproven and not name.startswith("total_difficulty")
    }


@pytest.mark.parametrize("body", [b"5", b'"x"', b"null", b"[null]", b"[5, {}]", b"[]", b"[[]]"])
def test_an_answer_that_is_not_json_rpc_is_refused(
    liar: FaultyNode, rpc_url: str, chain: DevChain, body: bytes
) -> None:
    liar.before = lambda calls: Reply(200, body)
    with pytest.raises((RpcRefused, ChainMismatch), match=liar.label):
        read(liar.url)
    assert read(liar.url, rpc_url, tries=9)[0] == expected(chain, 0, 29)


def test_of_two_answers_with_one_id_neither_is_used(liar: FaultyNode, chain: DevChain) -> None:
    def repeat(calls: Calls, items: Calls) -> Calls:
        if calls[0]["method"] != "eth_getBlockByNumber" or len(calls) == 1:
            return items
        other = deepcopy(items[0])
        other["result"]["timestamp"] = "0x1"
        return [*items, other]

    liar.after = repeat
    assert read(liar.url)[0] == expected(chain, 0, 29)  # asked one by one


@pytest.mark.parametrize(
    "reply",
    [
        Reply(403),
        Reply(200, orjson.dumps({"id": 0, "error": {"code": -32602, "message": "no"}})),
        Reply(200, orjson.dumps({"id": 0, "error": {"code": -32601, "message": "not found"}})),
    ],
    ids=["forbidden", "invalid", "unsupported"],
)
def test_an_endpoint_that_refuses_for_good_is_passed_over(
    liar: FaultyNode, rpc_url: str, chain: DevChain, reply: Reply
) -> None:
    liar.before = lambda calls: reply if calls[0]["method"] != "eth_chainId" else None
    with pytest.raises(RpcRefused, match=liar.label):
        read(liar.url, end=0)
    assert read(liar.url, rpc_url)[0] == expected(chain, 0, 29)


def test_lies_in_repeated_answers_are_detected(
    liar: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    """The first answer to each request is an error, the second one is a lie."""
    asked: set[bytes] = set()

    def refuse_first(calls: Calls) -> Reply | None:
        key = orjson.dumps(calls)
        is_first = key not in asked
        asked.add(key)
        return Reply(503) if is_first else None

    tell(liar, LIES["drop_all_logs"])
    liar.before = refuse_first
    with pytest.raises(VerificationFailed, match="logsBloom"):
        read(liar.url, tries=4)
    asked.clear()
    assert read(liar.url, rpc_url, tries=4)[0] == expected(chain, 0, 29)


def test_two_liars_that_share_the_work_are_both_detected(
    liar: FaultyNode, rpc_url: str, chain: DevChain
) -> None:
    """One answers blocks only and the other receipts only, so each chunk comes from both."""
    with FaultyNode(rpc_url) as other:
        tell(other, LIES["swap_logs"])
        other.before = lambda calls: (
            Reply(503) if calls[0]["method"] == "eth_getBlockByNumber" else None
        )
        liar.before = lambda calls: (
            Reply(503) if calls[0]["method"] == "eth_getBlockReceipts" else None
        )
        with pytest.raises(VerificationFailed, match="receiptsRoot"):
            read(liar.url, other.url, tries=6)
        assert not SET_ASIDE.includes(liar.url)  # either of them may be the liar
        assert read(liar.url, other.url, rpc_url, tries=6)[0] == expected(chain, 0, 29)
