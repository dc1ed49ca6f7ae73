"""`spark.readStream.format("evm")`: micro-batches through growth, reorganisations and restarts."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.chain.chain_rows import expected
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.devtools.devchain.rpc.server import RunningServer


def _chain() -> DevChain:
    return DevChain(11, 500, initial=40, txs_per_block=2)


@pytest.fixture
def server() -> Generator[RunningServer]:
    with start_server(_chain()) as running:
        yield running


class Sink:
    """Holds the rows of a stream reader: each batch replaces everything from its lowest block on."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.batches: list[tuple[int, int]] = []

    def take(self, batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.orderBy("block_number").collect()]
        numbers = [row["block_number"] for row in rows]
        self.batches.append((numbers[0], numbers[-1]))
        self.rows = [row for row in self.rows if row["block_number"] < numbers[0]] + rows


def _drain(spark: SparkSession, url: str, sink: Sink, checkpoint: Path) -> None:
    """Process everything available now. The next call continues from the checkpoint."""
    frame = (
        spark.readStream.format("evm")
        .option("rpc_url", url)
        .option("dataset", "blocks")
        .option("start", 5)
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(sink.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_a_stream_follows_growth_and_reorganisations_across_restarts(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    sink, twin = Sink(), _chain()
    _drain(spark, server.url, sink, tmp_path)
    assert sink.batches == [(5, 39)]
    for blocks, depth in ((3, 0), (0, 7), (4, 20)):
        server.mine(blocks)
        twin.mine(blocks)
        if depth:
            server.reorg(depth)
            twin.reorg(depth)
        _drain(spark, server.url, sink, tmp_path)
    assert sink.batches[1:] == [(40, 42), (36, 42), (27, 46)]
    rows = expected(twin, 5, twin.head)["blocks"]
    assert [{**row, **_bytes(row)} for row in sink.rows] == rows


def _bytes(row: dict[str, Any]) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in row.items() if isinstance(value, bytearray)}
