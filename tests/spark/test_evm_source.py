"""The chain as a Spark data source: every value is compared with the JSON of the chain."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from support.chain.chain_rows import expected
from support.chain.faulty_node import FaultyNode
from trace_etl.devtools.devchain import DevChain
from trace_etl.spark.errors import parse_executor_error

TABLES = ("blocks", "transactions", "logs")


def _read(
    spark: SparkSession, url: str, dataset: str, start: int, end: int, **more: Any
) -> DataFrame:
    reader = spark.read.format("evm").option("rpc_url", url).option("dataset", dataset)
    return reader.options(start=start, end=end, **more).load()


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [
        {
            key: bytes(value) if isinstance(value, bytearray) else value
            for key, value in row.asDict().items()
        }
        for row in frame.collect()
    ]


@pytest.mark.parametrize("dataset", TABLES)
def test_a_dataset_has_the_rows_of_the_chain(
    spark: SparkSession, rpc_url: str, chain: DevChain, dataset: str
) -> None:
    wanted = expected(chain, 0, 39)[dataset]
    assert len(wanted) > 30
    assert _rows(_read(spark, rpc_url, dataset, 0, 39)) == wanted


def test_the_sample_chain_contains_every_special_case(chain: DevChain) -> None:
    sample = expected(chain, 0, 39)
    topics = [sum(row[f"topic{i}"] is not None for i in range(4)) for row in sample["logs"]]
    assert {0, 3, 4} <= set(topics)
    assert any(row["to_address"] is None for row in sample["transactions"])
    assert any(row["max_fee_per_gas"] is None for row in sample["transactions"])
    assert any(not row["success"] for row in sample["transactions"])
    busy = {row["block_number"] for row in sample["transactions"]}
    assert len(busy) < 40  # at least one block is empty


@pytest.mark.parametrize("dataset", TABLES)
def test_the_schema_does_not_depend_on_the_range(
    spark: SparkSession, rpc_url: str, chain: DevChain, dataset: str
) -> None:
    full = expected(chain, 0, 39)
    busy = {row["block_number"] for row in full["logs"]}
    quiet = next(number for number in range(40) if number not in busy)
    many, none = (_read(spark, rpc_url, dataset, *span) for span in ((0, 9), (quiet, quiet)))
    assert many.schema == none.schema
    assert _rows(none) == expected(chain, quiet, quiet)[dataset]


def test_a_range_is_split_into_partitions_at_round_numbers(
    spark: SparkSession, rpc_url: str, chain: DevChain
) -> None:
    frame = _read(spark, rpc_url, "blocks", 5, 34, partition_size=10)
    assert frame.rdd.getNumPartitions() == 4
    assert _rows(frame) == expected(chain, 5, 34)["blocks"]


def test_each_dataset_requests_only_the_data_it_needs(spark: SparkSession, rpc_url: str) -> None:
    with FaultyNode(rpc_url) as node:
        _read(spark, node.url, "blocks", 0, 9).collect()
        assert set(node.methods()) == {"eth_chainId", "eth_getBlockByNumber"}
        _read(spark, node.url, "logs", 0, 9, verify="bloom").collect()
        assert "eth_getBlockReceipts" not in node.methods()
        # The data of logs is proven by the receipts root only.
        _read(spark, node.url, "logs", 0, 9).collect()
        assert "eth_getBlockReceipts" in node.methods()
        full = [c["params"][1] for calls in node.requests for c in calls if len(c["params"]) == 2]
        assert not any(full)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "receipts"}, "option dataset"),
        ({"start": "x"}, "option start"),
        ({"end": "-1"}, "option end"),
        ({"start": "9", "end": "3"}, "option end: 3 is before start 9"),
        ({"rpc_url": ""}, "option rpc_url"),
        ({"batch": "0"}, "option batch"),
    ],
)
def test_an_invalid_option_is_reported(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    given = {"rpc_url": "http://127.0.0.1:1", "dataset": "blocks", "start": "0", "end": "1"}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("evm").options(**{**given, **options}).load().collect()
    error = parse_executor_error(str(caught.value))
    assert error is not None and message in str(error)
