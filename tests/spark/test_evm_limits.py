"""Nodes with small or no batches, compressed answers, text ids and dates in Retry-After. No Spark."""

import gzip
from email.utils import formatdate
from time import time

import orjson
import pytest

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode, Reply
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.rpc.endpoint import parse_retry_after
from trace_etl.spark.evm.tables import build_table

ALL = ("blocks", "transactions", "logs")


def read(url: str, end: int) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {table: [] for table in ALL}
    with RangeReader(RpcSource((url,), initial_delay=0.001), ALL) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(0, end):
            for table in ALL:
                found[table] += build_table(table, chunk, chain_id).to_pylist()
    return found


@pytest.mark.parametrize("limit", [1, 3])
def test_a_node_without_block_receipts_and_with_small_batches_is_read(
    node: FaultyNode, chain: DevChain, limit: int
) -> None:
    def before(calls: Calls) -> Reply | None:
        if len(calls) > limit:
            error = {"code": -32005, "message": "batch too large"}
            return Reply(200, orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error}))
        return None

    def after(calls: Calls, items: Calls) -> Calls:
        unknown = {"code": -32601, "message": "method not found"}
        return [
            {"id": item["id"], "error": unknown}
            if call["method"] == "eth_getBlockReceipts"
            else item
            for call, item in zip(calls, items, strict=True)
        ]

    node.before, node.after = before, after
    assert read(node.url, 12) == expected(chain, 0, 12)
    # The limit is learned once: the next reader, with a batch of all its calls, is not refused.
    node.requests.clear()
    assert read(node.url, 12) == expected(chain, 0, 12)
    assert max(len(calls) for calls in node.requests) <= limit


def test_a_rate_limit_is_not_taken_for_a_limit_of_the_batch(
    node: FaultyNode, chain: DevChain
) -> None:
    refused: list[int] = []

    def before(calls: Calls) -> Reply | None:
        if len(calls) > 1 and len(refused) < 2:
            refused.append(len(calls))
            error = {"code": -32005, "message": "too many requests per second"}
            return Reply(200, orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error}))
        return None

    node.before = before
    assert read(node.url, 12) == expected(chain, 0, 12)
    node.requests.clear()
    assert read(node.url, 12) == expected(chain, 0, 12)
    assert max(len(calls) for calls in node.requests) == 10


def test_text_ids_are_accepted(node: FaultyNode, chain: DevChain) -> None:
    node.after = lambda calls, items: [{**item, "id": str(item["id"])} for item in items]
    assert read(node.url, 5) == expected(chain, 0, 5)


def test_compressed_answers_are_read(node: FaultyNode, chain: DevChain) -> None:
    def before(calls: Calls) -> Reply | None:
        reply = node._forward(calls, is_batch=len(calls) > 1)  # pyright: ignore[reportPrivateUsage]
        return Reply(200, gzip.compress(reply.body), {"Content-Encoding": "gzip"})

    node.before = before
    assert read(node.url, 5) == expected(chain, 0, 5)


def test_retry_after_may_be_a_date() -> None:
    assert parse_retry_after("7") == 7.0
    wait = parse_retry_after(formatdate(time() + 60, usegmt=True))
    assert wait is not None and 30 < wait <= 60
    assert parse_retry_after(formatdate(time() - 60, usegmt=True)) == 0.0
    assert parse_retry_after("soon") is None and parse_retry_after("") is None
    assert parse_retry_after(f"Mon, {'9' * 20} Jan 2020 00:00:00 GMT") is None
