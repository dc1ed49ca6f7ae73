"""Traces of a recorded chain (calls, creations, a revert, a self-destruct), by cryo and by Trace."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.chain import cryo
from support.chain.faulty_node import Calls, FaultyNode, Reply
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import SCHEMAS, build_table

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("traced_chain.json").read_text())
LAST = int(RECORDED['["eth_blockNumber", []]'], 16)


@pytest.fixture
def url() -> Generator[str]:
    """A node that answers only from its recording."""
    with FaultyNode("http://127.0.0.1:9", before=_answer) as node:
        yield node.url


def _answer(calls: Calls) -> Reply:
    items = [{"jsonrpc": "2.0", "id": call["id"], "result": RECORDED[_key(call)]} for call in calls]
    return Reply(200, json.dumps(items if len(items) > 1 else items[0]).encode())


def _key(call: dict[str, Any]) -> str:
    return json.dumps([call["method"], call.get("params", [])])


def test_every_trace_field_equals_the_field_of_cryo(url: str, tmp_path: Path) -> None:
    out = tmp_path / "cryo"
    cryo.freeze(["traces"], LAST + 1, url, out)
    theirs = pa.concat_tables([pq.read_table(file) for file in out.glob("*.parquet")])
    with RangeReader(RpcSource((url,)), ("traces",)) as reader:
        chain_id = reader.chain_id()
        batches = [build_table("traces", chunk, chain_id) for chunk in reader.chunks(0, LAST)]
    ours = pa.Table.from_batches(batches)
    assert set(ours["action_type"].to_pylist()) == {"call", "create", "suicide"}
    for name in theirs.column_names:
        expected = theirs[name].cast(SCHEMAS["traces"].field(name).type)
        assert ours[name].to_pylist() == expected.to_pylist(), name
