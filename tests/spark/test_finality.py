"""History ends at the finalized block, or at a number of confirmations. HTTP only, no Spark."""

from collections.abc import Generator
from typing import Any

import pytest

from support.chain.faulty_node import Calls, FaultyNode, Reply
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.spark.errors import NotFinal, RpcRefused, RpcUnreachable
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.finality import check_finality

HEAD = 99


@pytest.fixture(scope="module")
def growing_url() -> Generator[str]:
    with start_server(DevChain(seed=3, length=200, initial=HEAD + 1, txs_per_block=0)) as server:
        yield server.url


@pytest.fixture
def node(growing_url: str) -> Generator[FaultyNode]:
    with FaultyNode(growing_url) as made:
        yield made


def source(*urls: str) -> RpcSource:
    return RpcSource(urls, tries=1, initial_delay=0.001)


def test_a_block_after_the_finalized_one_is_refused_with_the_reason(growing_url: str) -> None:
    check_finality(source(growing_url), HEAD - 64, "finalized")
    label = growing_url.removeprefix("http://")
    reason = f"block {HEAD - 63} is not final yet: {label} reports block {HEAD - 64} as finalized"
    with pytest.raises(NotFinal, match=reason):
        check_finality(source(growing_url), HEAD - 63, "finalized")


def test_confirmations_replace_the_finalized_block(growing_url: str) -> None:
    check_finality(source(growing_url), HEAD - 10, 10)
    with pytest.raises(NotFinal, match="less 10 confirmations is 89"):
        check_finality(source(growing_url), HEAD - 9, 10)


def change_number(node: FaultyNode, number: int | None) -> None:
    def after(calls: Calls, items: Calls) -> Calls:
        error = {"code": -39001, "message": "finalized block not found"}
        for call, item in zip(calls, items, strict=True):
            if call["params"][:1] == ["finalized"] and number is None:
                item.clear()
                item.update({"id": call["id"], "error": error})
            elif call["params"][:1] == ["finalized"]:
                item["result"]["number"] = hex(number or 0)
        return items

    node.after = after


def test_an_endpoint_that_calls_its_head_final_does_not_decide_alone(
    node: FaultyNode, growing_url: str
) -> None:
    change_number(node, HEAD)
    check_finality(source(node.url), HEAD, "finalized")  # nothing contradicts it
    with pytest.raises(NotFinal):
        check_finality(source(node.url, growing_url), HEAD, "finalized")


def test_a_chain_without_finality_needs_a_number_of_confirmations(node: FaultyNode) -> None:
    change_number(node, None)
    with pytest.raises(NotFinal, match="set `finality` of the job to a number of confirmations"):
        check_finality(source(node.url), 1, "finalized")
    check_finality(source(node.url), 1, 64 - 1)


def test_endpoints_that_do_not_answer_are_ignored_if_others_do(growing_url: str) -> None:
    dead: Any = "http://127.0.0.1:9"
    check_finality(source(dead, growing_url), 1, "finalized")
    with pytest.raises(RpcUnreachable):
        check_finality(source(dead), 1, "finalized")


def test_an_endpoint_that_refuses_everything_is_not_a_chain_without_finality(
    node: FaultyNode,
) -> None:
    node.before = lambda calls: Reply(500)
    with pytest.raises(RpcRefused, match="HTTP 500"):
        check_finality(source(node.url), 1, "finalized")


def test_provisional_blocks_are_marked_until_they_are_final(growing_url: str) -> None:
    assert not check_finality(source(growing_url), HEAD - 64, "provisional")
    assert check_finality(source(growing_url), HEAD - 63, "provisional")
    assert check_finality(source(growing_url), HEAD, "provisional")
    with pytest.raises(NotFinal, match=f"block {HEAD + 1} does not exist yet"):
        check_finality(source(growing_url), HEAD + 1, "provisional")


def test_one_endpoint_cannot_make_provisional_blocks_final(
    node: FaultyNode, growing_url: str
) -> None:
    change_number(node, HEAD)
    assert not check_finality(source(node.url), HEAD, "provisional")  # nothing contradicts it
    assert check_finality(source(node.url, growing_url), HEAD, "provisional")
