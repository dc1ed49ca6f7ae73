"""Compact 17,900 small files into 17; compare bytes and query time before and after.

The rows come from the development chain: as on a real chain, senders, tokens and amounts repeat and
hashes do not, so that compression is realistic. The ratio on your chain will differ.
"""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Result, compare
from bench.outputs import new_file, output
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table
from trace_etl.spark.io.parquet import open_parquet_file
from trace_etl.spark.io.writers import mark_success
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

FILES = 17_900  # one file per block, a number that users report
PARTITIONS = 17
TXS_PER_BLOCK = 20
TABLES = ("logs", "transactions")
_QUERIES = {
    "logs": "SELECT address, count(*), max(block_number) FROM t GROUP BY address ORDER BY 2 DESC",
    "transactions": "SELECT from_address, count(*), sum(value_f64) FROM t GROUP BY 1 ORDER BY 2",
}


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        root = Path(name)
        tables = _read_chain()
        runner = SparkRunner(SparkSettings(FileStore(root / "objects"), root / "spark"))
        try:
            return [one for table in TABLES for one in _measure_table(runner, table, tables[table])]
        finally:
            runner.close()


def _measure_table(runner: SparkRunner, table: str, rows: Any) -> list[Result]:
    store = runner.settings.objects
    edges = np.searchsorted(rows["block_number"].to_numpy(), np.arange(FILES + 1))
    small = _write_small_files(store, table, rows, edges)
    large: list[Path] = []
    for blocks in _partitions():
        payload = _payload(table, blocks, small)
        runner.run(payload)
        place = payload.outputs[0].storage_ref
        [file] = Path(store.root, place.bucket, place.prefix).glob("*.parquet")
        first, last = edges[blocks.start], edges[blocks.stop]
        if not pq.read_table(file).equals(rows.slice(first, last - first)):
            raise RuntimeError(f"{file} does not contain the rows of its small files")
        large.append(file)
    before, after = (sum(file.stat().st_size for file in files) for files in (small, large))
    ratio = len(large) / len(small)
    query = partial(_time_query, _QUERIES[table])
    return [
        Result(f"compact_{table}_files", len(large), len(small), "files", ratio, "<= 0.001"),
        Result(f"compact_{table}_bytes", after, before, "bytes", after / before, "<= 0.5"),
        compare(
            f"compact_{table}_time_query",
            lambda: query(large),
            lambda: query(small),
            unit="s",
            goal="<= 0.33",
        ),
    ]


def _partitions() -> list[range]:
    edges = np.linspace(0, FILES, PARTITIONS + 1).astype(int).tolist()
    return [range(first, after) for first, after in pairwise(edges)]


def _read_chain() -> dict[str, Any]:
    tables: dict[str, list[Any]] = {table: [] for table in TABLES}
    with start_server(DevChain(length=FILES, txs_per_block=TXS_PER_BLOCK)) as chain:
        source = RpcSource((chain.url,))
        with RangeReader(source, TABLES) as reader:
            for chunk in reader.chunks(0, FILES - 1):
                for table in TABLES:
                    tables[table].append(build_table(table, chunk, 1))
    return {table: pa.Table.from_batches(batches) for table, batches in tables.items()}


def _write_small_files(store: FileStore, table: str, rows: Any, edges: Any) -> list[Path]:
    """Write one file per block, as an ingest at the tip does."""
    paths: list[Path] = []
    for block, (first, last) in enumerate(pairwise(edges)):
        target = new_file(store, f"{table}_{block}_{block}.parquet")
        with open_parquet_file(store, target.key, rows.schema) as file:
            for batch in rows.slice(first, last - first).to_batches():
                file.write(batch)
            written = file.finish()
        mark_success(target, written, rows.schema)
        paths.append(Path(store.jvm_path(target.key)))
    return paths


def _time_query(sql: str, files: Sequence[Path]) -> float:
    began = time.perf_counter()
    with duckdb.connect() as connection:
        connection.read_parquet([str(file) for file in files]).create_view("t")
        connection.execute(sql).fetchall()
    return time.perf_counter() - began


def _payload(table: str, blocks: range, small: Sequence[Path]) -> TaskPayload:
    task_id = uuid4()
    first, last = blocks.start, blocks.stop - 1
    return TaskPayload.model_validate(
        {
            "task_id": task_id,
            "attempt": 1,
            "job": {"dag_name": "bench", "name": "compact"},
            "operator": "parquet_compact",
            "config": {},
            "scope": {"partition_key": f"{first}-{last}", "start": first, "end": last},
            "inputs": [
                {
                    "input_index": 0,
                    "name": table,
                    "dataset_uuid": uuid4(),
                    "dataset_version": uuid4(),
                    "partitions": [
                        {
                            "partition_key": f"{block}-{block}",
                            "start": block,
                            "end": block,
                            "storage_ref": {
                                "scheme": "file",
                                "bucket": "bench",
                                "prefix": f"{small[block].parent.name}/",
                            },
                        }
                        for block in blocks
                    ],
                }
            ],
            "outputs": [output(0, table, task_id)],
        }
    )
