"""Query a published file through the Query Service; compare with bare DuckDB on the same file.

The reference is DuckDB in a process of its own threads: no HTTP, no TLS, no check of the SQL, no pin of
partitions, no separate process, no record of the query. Files are written as operators write them.
Answers are those of the Python client. Arrow results are transfers of a chain, and integers only, which
Parquet reads fastest; whole columns are sent as they are stored. A result that DuckDB computes is compared
with a bare TLS transfer of as many bytes.
"""

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare, percentile
from bench.tls_floor import open_floor, receive
from trace_etl.client import connect
from trace_etl.client.stack_client import StackClient, open_client
from trace_etl.lite.processes import probes
from trace_etl.lite.processes.ports import free_port
from trace_etl.model.storage import attempt_prefix, generation_prefix
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.io.parquet import ROW_GROUP_ROWS, open_parquet_file

CLIENTS = (1, 16)
QUERIES = 96
SMALL_ROWS, LARGE_ROWS, RESULT_ROWS = 1_000_000, 10_000_000, 1_000_000
_DAG = """
name: bench
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: one, operator: sql, inputs: [{from: {job: request}}], outputs: [out], config: {sql: SELECT 1 AS n}}
  - {name: two, operator: sql, inputs: [{from: {job: request}}], outputs: [out], config: {sql: SELECT 1 AS n}}
  - {name: three, operator: sql, inputs: [{from: {job: request}}], outputs: [out], config: {sql: SELECT 1 AS n}}
publish:
  - {name: small, from: {job: one}}
  - {name: large, from: {job: two}}
  - {name: transfers, from: {job: three}}
"""
_SMALL = "SELECT address, count(*), sum(amount) FROM {} WHERE block < 5000 GROUP BY 1 ORDER BY 3 LIMIT 20"
_LARGE = "SELECT address, count(*), sum(amount), max(block) FROM {} GROUP BY 1 ORDER BY 3 LIMIT 20"
_ALL = "SELECT * FROM {}"
_COMPUTED = "SELECT * FROM {} WHERE block_number >= 0"
_START_SECONDS = 60.0


def run() -> list[Result]:
    with start_stack() as stack:
        stack.post("/v1/dags", {"text": _DAG})
        small = _publish(stack, "small", _make_rows(SMALL_ROWS))
        large = _publish(stack, "large", _make_rows(LARGE_ROWS))
        transfers = _publish(stack, "transfers", _make_transfers(RESULT_ROWS))
        with _query_service(stack) as url:
            results = [
                r for clients in CLIENTS for r in _measure_latency(stack, url, small, clients)
            ]
            return [
                *results,
                _measure_aggregate(stack, url, large),
                _measure_arrow(stack, url, "transfers", transfers),
                _measure_arrow(stack, url, "small", small),
                _measure_computed(stack, url, "transfers"),
            ]


def _make_rows(count: int) -> pa.Table:
    chooser = np.random.default_rng(7)
    return pa.table(
        {
            "block": np.arange(count, dtype=np.int64) // 100,
            "address": pa.array(chooser.integers(0, 500, count).astype(np.int64)),
            "amount": chooser.integers(0, 10**9, count),
        }
    )


def _make_transfers(count: int) -> pa.Table:
    """Return rows as those of ERC-20 transfers: hashes, addresses that repeat, amounts."""
    chooser = np.random.default_rng(7)

    def choose(width: int, values: int) -> pa.Array:
        pool = chooser.integers(0, 256, (values, width), dtype=np.uint8)
        rows = np.arange(count) if values == count else chooser.zipf(1.3, count) % values
        ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(pool[rows].tobytes())]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    return pa.table(
        {
            "block_number": np.arange(count, dtype=np.int64) // 100,
            "log_index": np.arange(count, dtype=np.int64) % 100,
            "transaction_hash": choose(32, count),
            "token": choose(20, 500),
            "sender": choose(20, 100_000),
            "recipient": choose(20, 100_000),
            "value_string": pa.array(chooser.integers(0, 10**18, count).astype(str)),
        }
    )


def _publish(stack: BenchStack, name: str, rows: pa.Table) -> Path:
    """Write one file and commit it as a partition, as a completion does. Returns the file."""
    ((dataset, version),) = stack.execute(
        "SELECT d.dataset_uuid, d.dataset_version FROM publications p"
        " JOIN datasets d USING (dataset_uuid) WHERE p.name = %s",
        (name,),
    )
    task = uuid4()
    prefix = attempt_prefix(generation_prefix(UUID(str(dataset)), version), task, 1)
    store = FileStore(stack.directory / "objects")
    file = store.root / "trace" / prefix / f"{name}_0_9.parquet"
    with open_parquet_file(store, f"trace/{prefix}{file.name}", rows.schema) as output:
        for batch in rows.to_batches(max_chunksize=ROW_GROUP_ROWS):
            output.write(batch)
        size = output.finish().bytes
    files = [{"name": file.name, "rows": rows.num_rows, "bytes": size}]
    marker = {"files": files, "rows": rows.num_rows, "bytes": size, "schema": []}
    (file.parent / "_SUCCESS").write_text(json.dumps(marker))
    ref = {"scheme": "file", "bucket": "trace", "prefix": prefix, "glob": "*.parquet"}
    stack.execute(
        """INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start,
               range_end, storage_ref, row_count, byte_count, columns, task_id, attempt)
           SELECT dataset_version, generation_no, '0-9', 0, 9, %s, %s, %s, '[]', %s, 1
             FROM dataset_versions WHERE dataset_version = %s""",
        (json.dumps(ref), rows.num_rows, size, task, version),
    )
    return file


@contextmanager
def _query_service(stack: BenchStack) -> Generator[str]:
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "TRACE_STATE_DSN": stack.dsns.reader,
        "TRACE_QUERY_PORT": str(port),
        "TRACE_TLS_CERT": str(stack.directory / "tls" / "server.pem"),
        "TRACE_TLS_KEY": str(stack.directory / "tls" / "server.key"),
        "TRACE_USER_KEYS_DIR": str(stack.directory / "user" / "public"),
        "TRACE_OBJECTS_URL": (stack.directory / "objects").as_uri(),
        "TRACE_QUERY_SLOTS": "4",
        "TRACE_QUERY_SLOTS_PER_USER": "4",
        "TRACE_LOG_LEVEL": "error",
    }
    process = subprocess.Popen([sys.executable, "-m", "trace_etl.query"], env=environment)
    try:
        url = f"https://127.0.0.1:{port}"
        is_up, deadline = probes.http(stack.ca, url), time.monotonic() + _START_SECONDS
        while not is_up(process.pid):
            assert process.poll() is None and time.monotonic() < deadline, "it does not start"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _client(stack: BenchStack, url: str) -> closing[StackClient]:
    return closing(open_client(url, url, stack.user_token, str(stack.ca)))


def _open_duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 2})


def _measure_latency(stack: BenchStack, url: str, file: Path, clients: int) -> list[Result]:
    times: dict[str, list[float]] = {"ours": [], "reference": []}

    def ours() -> list[float]:
        def work(run: Callable[[Callable[[], Any]], None]) -> None:
            with _client(stack, url) as client:
                client.query("SELECT 1")  # opens the connection
                run(lambda: client.query(_SMALL.format("small")))

        return _time_all(clients, work)

    def reference() -> list[float]:
        engine = _open_duckdb()

        def work(run: Callable[[Callable[[], Any]], None]) -> None:
            with engine.cursor() as cursor:
                run(lambda: cursor.execute(_SMALL.format(f"'{file}'")).fetchall())

        return _time_all(clients, work)

    def collect(kind: str, measure: Callable[[], list[float]]) -> float:
        found = measure()
        times[kind] += found
        return percentile(found, 0.5) * 1000

    p50 = compare(
        f"query_p50_vs_duckdb[{clients}]",
        lambda: collect("ours", ours),
        lambda: collect("reference", reference),
        unit="ms",
        goal="<= 1.5",
    )
    late = [percentile(times[kind], 0.99) * 1000 for kind in ("ours", "reference")]
    ratio = late[0] / late[1]
    return [p50, Result(f"query_p99_vs_duckdb[{clients}]", *late, "ms", ratio, "<= 1.5")]


def _time_all(
    clients: int, work: Callable[[Callable[[Callable[[], Any]], None]], None]
) -> list[float]:
    """Run the same number of queries in total, in so many threads. Returns the seconds of each."""
    taken: list[float] = []

    def run(query: Callable[[], Any]) -> None:
        query()
        for _ in range(QUERIES // clients):
            began = time.perf_counter()
            query()
            taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(run,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == QUERIES // clients * clients, "a client failed"
    return taken


def _measure_aggregate(stack: BenchStack, url: str, file: Path) -> Result:
    engine = _open_duckdb()
    with _client(stack, url) as client:
        return compare(
            "query_10m_rows_vs_duckdb",
            lambda: _time(lambda: client.query(_LARGE.format("large"))),
            lambda: _time(lambda: engine.execute(_LARGE.format(f"'{file}'")).fetchall()),
            unit="s",
            goal="<= 1.1",
            rounds=5,
        )


def _measure_arrow(stack: BenchStack, url: str, name: str, file: Path) -> Result:
    api_url = f"https://127.0.0.1:{stack.api_port}"
    with connect(api_url=api_url, query_url=url, token=stack.user_token, ca=stack.ca) as client:

        def ours() -> float:
            def fetch() -> None:
                assert client.query(_ALL.format(name)).arrow().num_rows == RESULT_ROWS

            return RESULT_ROWS / _time(fetch)

        return compare(
            f"query_arrow_vs_parquet_read[{name}]",
            ours,
            lambda: RESULT_ROWS / _time(lambda: pq.read_table(file)),
            unit="rows/s",
            goal=">= 0.5",
            rounds=5,
        )


def _measure_computed(stack: BenchStack, url: str, name: str) -> Result:
    """Compare a result that DuckDB computes with a bare TLS transfer of as many bytes."""
    api_url = f"https://127.0.0.1:{stack.api_port}"
    context = ssl.create_default_context(cafile=str(stack.ca))
    with connect(api_url=api_url, query_url=url, token=stack.user_token, ca=stack.ca) as client:
        size = client.query(_COMPUTED.format(name)).arrow().nbytes
        with open_floor(stack.directory / "tls", size) as port:
            return compare(
                f"query_arrow_vs_tls[{name}]",
                lambda: RESULT_ROWS / _time(lambda: client.query(_COMPUTED.format(name)).arrow()),
                lambda: RESULT_ROWS / _time(lambda: receive(port, context, size)),
                unit="rows/s",
                goal=">= 0.25",
                rounds=5,
            )


def _time(step: Callable[[], Any]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
