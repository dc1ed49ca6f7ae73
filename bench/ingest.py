"""Compare ingest with `cryo` from PyPI on the same replayed chain with large blocks."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from bench import replay
from bench.harness import Result, compare
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.evm.rpc.answers import RpcCall, encode_calls
from trace_etl.spark.evm.rpc.endpoint import Endpoint
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

BLOCKS = 2000
CHUNK = 1000  # cryo's default
TXS_PER_BLOCK = 29
BATCH = 40
WARM = 20  # warm-up rounds: the JVM of a worker that runs for days has compiled its hot code
DATASETS = ("blocks", "transactions", "logs")
# `none` leaves only the checks that answers agree with each other, as before verification existed.
CONFIGS: dict[str, dict[str, object]] = {
    "none": {"verify": "links", "exceptions": ["header_hash", "log_indices", "gas_used"]},
    "bloom": {"verify": "bloom"},
    "roots": {"verify": "roots"},
}

_CRYO = """
import sys, time, cryo
began = time.perf_counter()
cryo.freeze(['blocks', 'transactions', 'logs'], blocks=[f'0:{sys.argv[2]}'], rpc=sys.argv[1],
            output_dir=sys.argv[3], chunk_size=int(sys.argv[4]), verbose=False)
print(time.perf_counter() - began, file=sys.stderr)
"""


def payload(start: int, end: int, verify: str) -> TaskPayload:
    """Return the task of one partition, as the Dispatcher would send it."""
    task_id = uuid4()
    outputs = [
        {
            "output_index": n,
            "name": name,
            "dataset_uuid": uuid4(),
            "dataset_version": uuid4(),
            "storage_ref": {"scheme": "file", "bucket": "trace", "prefix": f"{task_id}/{name}/"},
        }
        for n, name in enumerate(DATASETS)
    ]
    scope = {"partition_key": f"{start}-{end}", "start": start, "end": end}
    return TaskPayload.model_validate(
        {
            "task_id": task_id,
            "attempt": 1,
            "job": {"dag_name": "bench", "name": "ingest"},
            "operator": "cryo_ingest",
            "config": CONFIGS[verify],
            "scope": scope,
            "outputs": outputs,
        }
    )


def ours(runner: SparkRunner, slots: int, verify: str = "none") -> float:
    """Return blocks per second in the warm session of a worker with this number of slots."""
    tasks = [payload(start, start + CHUNK - 1, verify) for start in range(0, BLOCKS, CHUNK)]
    began = time.perf_counter()
    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(runner.run, tasks))
    seconds = time.perf_counter() - began
    shutil.rmtree(runner.settings.objects.root)
    return BLOCKS / seconds


def cryo(url: str) -> float:
    """Return blocks per second of cryo's function call, without the start of its process."""
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(
            [sys.executable, "-c", _CRYO, url, str(BLOCKS), directory, str(CHUNK)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOME": directory},
        )
        # cryo sometimes crashes when its process exits, after it has written everything.
        if result.returncode > 0:
            raise RuntimeError(f"cryo ended with {result.returncode}: {result.stderr}")
        files = list(Path(directory).glob("*.parquet"))
        if len(files) != len(DATASETS) * (BLOCKS // CHUNK):
            raise RuntimeError(f"cryo wrote {len(files)} files: {result.stdout} {result.stderr}")
    return BLOCKS / float(result.stderr.split()[-1])


def drain(url: str) -> float:
    """Return blocks per second of a client that discards the server's responses."""

    def fetch(start: int) -> None:
        endpoint = Endpoint(url, timeout=60)
        for method, *more in (("eth_getBlockByNumber", True), ("eth_getBlockReceipts",)):
            calls = [RpcCall(method, (hex(n), *more)) for n in range(start, start + BATCH)]
            if endpoint.post(encode_calls(calls)).status != 200:
                raise RuntimeError("the replay server rejected a batch")
        endpoint.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(fetch, range(0, BLOCKS, BATCH)))
    return BLOCKS / (time.perf_counter() - began)


def run() -> list[Result]:
    """Write blocks, transactions and logs of the same blocks to Parquet with both programs."""
    if sys.version_info >= (3, 12):
        print("ingest_vs_cryo needs Python 3.11: cryo has no wheel for newer ones", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        directory = Path(name)
        chain = directory / "chain.jsonl"
        replay.write(
            chain, replay.lines_of_chain(DevChain(length=BLOCKS, txs_per_block=TXS_PER_BLOCK))
        )
        with replay.replaying(chain) as url:
            settings = SparkSettings(
                objects=FileStore(directory / "objects"),
                spark_dir=directory / "spark",
                rpc_pools={"default": (url,)},
            )
            runner = SparkRunner(settings)
            try:
                runner.warm()
                for turn in range(WARM):
                    ours(runner, 2, list(CONFIGS)[turn % len(CONFIGS)])
                return [
                    compare(
                        "ingest_vs_cryo",
                        lambda: ours(runner, 2),
                        lambda: cryo(url),
                        unit="blocks/s",
                        goal=">= 1.5",
                    ),
                    compare(
                        "ingest_roots_vs_cryo",
                        lambda: ours(runner, 2, "roots"),
                        lambda: cryo(url),
                        unit="blocks/s",
                        goal=">= 1.0",
                    ),
                    compare(
                        "ingest_bloom_vs_none",
                        lambda: ours(runner, 2, "bloom"),
                        lambda: ours(runner, 2),
                        unit="blocks/s",
                        goal=">= 0.9",
                    ),
                    compare(
                        "ingest_share_of_drain",
                        lambda: ours(runner, 2),
                        lambda: drain(url),
                        unit="blocks/s",
                        goal=">= 0",
                    ),
                ]
            finally:
                runner.close()
