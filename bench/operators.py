"""Run operators over many rows: compare decoding with eth-abi, and the rest with plain Spark."""

import tempfile
import time
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from eth_abi import decode
from pyspark.sql import SparkSession

from bench.harness import Result, compare
from bench.outputs import new_file, output
from trace_etl.api.task.payload import TaskPayload
from trace_etl.dag.abi import parse_event
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.abi.events import Decoder, LogDecoder
from trace_etl.spark.abi.numbers import to_binary
from trace_etl.spark.io.parquet import open_parquet_file
from trace_etl.spark.io.writers import mark_success
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

DECODED = 1_000_000
ROWS = 5_000_000
FILES = 50
_SAMPLE = 20_000  # rows for the eth-abi loop, which would take minutes on all rows
_TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
_SQL = "SELECT address, count(*) AS n, max(block_number) AS last FROM logs GROUP BY address"
_DECODE = {
    "events": {"answer": "Transfer(address indexed from, address indexed to, uint256 value)"}
}


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        runner = SparkRunner(SparkSettings(FileStore(Path(name) / "objects"), Path(name) / "spark"))
        runner.warm()
        try:
            return [
                *_decoding(OperatorBench(runner, DECODED, 1)),
                *_tables(OperatorBench(runner, ROWS, FILES)),
            ]
        finally:
            runner.close()


def _decoding(bench: "OperatorBench") -> list[Result]:
    task = partial(bench.task, "decode_logs", _DECODE, ["answer", "undecoded"])
    task()
    return [
        compare(
            "decode_1m_vs_eth_abi",
            lambda: DECODED / task(),
            bench.loop,
            unit="logs/s",
            goal=">= 20",
        ),
        compare(
            "decode_in_memory_vs_eth_abi",
            bench.decode,
            bench.loop_in_memory,
            unit="logs/s",
            goal=">= 20",
        ),
    ]


def _tables(bench: "OperatorBench") -> list[Result]:
    sql = partial(bench.task, "sql", {"sql": _SQL}, ["answer"])
    compact = partial(bench.task, "parquet_compact", {}, ["answer"])
    bare_sql = partial(bench.bare, _SQL)
    bare_compact = partial(bench.bare, "SELECT * FROM logs", order="block_number")
    return [
        compare("sql_5m_vs_spark", sql, bare_sql, unit="s", goal="<= 1.3"),
        compare("compact_5m_vs_spark", compact, bare_compact, unit="s", goal="<= 1.3", rounds=1),
    ]


class OperatorBench:
    """Log files of equal block ranges, and tasks that read them."""

    def __init__(self, runner: SparkRunner, rows: int, files: int) -> None:
        self._runner = runner
        self._root = runner.settings.objects.root
        self._turn = count()
        size = rows // files
        self._spans = [(n * size, (n + 1) * size - 1) for n in range(files)]
        self._places = [self._write(*span) for span in self._spans]

    def task(self, operator: str, config: Mapping[str, Any], outputs: list[str]) -> float:
        """Return the seconds that the runner takes, from the payload to the success marker."""
        payload = self._payload(operator, config, outputs)
        began = time.perf_counter()
        self._runner.run(payload)
        return time.perf_counter() - began

    def bare(self, sql: str, order: str | None = None) -> float:
        """Return the seconds of plain Spark for the same: read, select, write one file."""
        began = time.perf_counter()
        spark = self._spark()
        paths = [str(one) for place in self._places for one in place.glob("*.parquet")]
        spark.read.parquet(*paths).createOrReplaceTempView("logs")
        frame = spark.sql(sql).repartition(1)
        frame = frame.sortWithinPartitions(order) if order else frame
        out = self._root / f"bare-{next(self._turn)}"
        frame.write.option("compression", "zstd").parquet(str(out))
        return time.perf_counter() - began

    def loop(self) -> float:
        """Return logs per second of a loop with eth-abi, from file to file like a task."""
        [path] = self._places[0].glob("*.parquet")
        began = time.perf_counter()
        logs = pq.ParquetFile(path).read_row_group(0).slice(0, _SAMPLE).to_pylist()
        rows = [{**log, **_by_eth_abi(log)} for log in logs]
        pq.write_table(pa.Table.from_pylist(rows), self._root / "loop.parquet", compression="zstd")
        return _SAMPLE / (time.perf_counter() - began)

    def loop_in_memory(self) -> float:
        """Return logs per second of the eth-abi loop without files."""
        logs = _logs(0, _SAMPLE - 1).select(["topic1", "topic2", "data"]).to_pylist()
        began = time.perf_counter()
        for log in logs:
            _by_eth_abi(log)
        return _SAMPLE / (time.perf_counter() - began)

    def decode(self) -> float:
        """Return logs per second of our decoder without files."""
        batch = _logs(0, 10 * _SAMPLE - 1)
        event = parse_event(_DECODE["events"]["answer"])
        columns = [(field.name, field.type) for field in batch.schema]
        decoder = LogDecoder([Decoder("answer", event)], columns[:6], columns, "undecoded")
        began = time.perf_counter()
        for at in range(0, len(batch), 50_000):
            list(decoder(batch.slice(at, 50_000)))
        return len(batch) / (time.perf_counter() - began)

    def _spark(self) -> SparkSession:
        return self._runner.session.get()

    def _write(self, start: int, end: int) -> Path:
        target = new_file(self._runner.settings.objects, f"logs_{start}_{end}.parquet")
        batch = _logs(start, end)
        with open_parquet_file(target.store, target.key, batch.schema) as file:
            file.write(batch)
            written = file.finish()
        mark_success(target, written, batch.schema)
        return Path(target.store.jvm_path(target.key)).parent

    def _payload(self, operator: str, config: Mapping[str, Any], outputs: list[str]) -> TaskPayload:
        task_id = uuid4()
        end = self._spans[-1][1]
        partitions = [
            {
                "partition_key": f"{a}-{b}",
                "start": a,
                "end": b,
                "storage_ref": {
                    "scheme": "file",
                    "bucket": "bench",
                    "prefix": f"{place.name}/",
                },
            }
            for (a, b), place in zip(self._spans, self._places, strict=True)
        ]
        return TaskPayload.model_validate(
            {
                "task_id": task_id,
                "attempt": 1,
                "job": {"dag_name": "bench", "name": operator},
                "operator": operator,
                "config": config,
                "scope": {"partition_key": f"0-{end}", "start": 0, "end": end},
                "inputs": [
                    {
                        "input_index": 0,
                        "name": "logs",
                        "dataset_uuid": uuid4(),
                        "dataset_version": uuid4(),
                        "partitions": partitions,
                    }
                ],
                "outputs": [output(n, name, task_id) for n, name in enumerate(outputs)],
            }
        )


def _by_eth_abi(log: dict[str, Any]) -> dict[str, Any]:
    [sender] = decode(["address"], log["topic1"])
    [receiver] = decode(["address"], log["topic2"])
    [value] = decode(["uint256"], log["data"])
    return {
        "from": bytes.fromhex(sender[2:]),
        "to": bytes.fromhex(receiver[2:]),
        "value_binary": value.to_bytes(32, "big"),
        "value_string": str(value),
        "value_f64": float(value),
    }


def _logs(start: int, end: int) -> Any:
    """Return ERC-20 transfers of 500 tokens between random accounts, one per block."""
    rows = end - start + 1
    random = np.random.default_rng(start)
    people = np.zeros((rows, 2, 32), np.uint8)
    people[:, :, 12:] = random.integers(0, 256, (rows, 2, 20), np.uint8)
    tokens = np.zeros((500, 20), np.uint8)
    tokens[:, :8] = np.arange(500, dtype=np.uint64).view(np.uint8).reshape(500, 8)
    amounts = np.zeros((rows, 32), np.uint8)
    amounts[:, 22:] = random.integers(0, 256, (rows, 10), np.uint8)
    hashes = random.integers(0, 256, (rows, 32), np.uint8)
    topic0 = np.broadcast_to(np.frombuffer(_TRANSFER, np.uint8), (rows, 32))
    zeros = pa.array(np.zeros(rows, np.int64))
    return pa.record_batch(
        {
            "block_number": pa.array(np.arange(start, end + 1)),
            "transaction_index": zeros,
            "log_index": zeros,
            "transaction_hash": to_binary(hashes),
            "address": to_binary(tokens[random.integers(0, 500, rows)]),
            "topic0": to_binary(topic0),
            "topic1": to_binary(people[:, 0]),
            "topic2": to_binary(people[:, 1]),
            "topic3": pa.nulls(rows, pa.binary()),
            "data": to_binary(amounts),
            "n_data_bytes": pa.array(np.full(rows, 32)),
            "chain_id": pa.array(np.ones(rows, np.int64)),
        }
    )
