"""Measure the peak memory of a worker and its children on data larger than memory.

The worker runs in a separate process. The memory of the worker, its JVM and its Python processes is
sampled during the task. The result is the PSS, which counts a page shared by several processes once;
the sum of the resident sizes is printed as well.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench import endless, replay
from bench.harness import Result
from bench.outputs import new_file, output
from trace_etl.api.task.payload import TaskPayload
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.io.parquet import WrittenFile
from trace_etl.spark.io.writers import mark_success
from trace_etl.spark.session.conf import heap_within
from trace_etl.spark.settings import SparkSettings

LIMIT_MB = 1792  # the smallest possible: Spark does not start with a smaller heap
LIMIT = LIMIT_MB * 1024 * 1024
TIMES = 10
_FILES, _WIDTH, _GROUP = 20, 1024, 50_000
_SAMPLE_SECONDS = 0.1
# Every tenth row, ordered by block: all rows are read, and the sort needs more than the heap.
_SQL = "SELECT block_number, log_index, data FROM logs WHERE log_index = 0"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        root = Path(name)
        with replay.served("-m", "bench.endless") as url:
            # The range needs more than one Spark task, so that the rows pass a shuffle too.
            blocks = TIMES * LIMIT // endless.bytes_per_block() + 1
            handled = blocks * endless.bytes_per_block()
            ingest = _measure_task("memory_ingest", root, url, _ingest(blocks), handled)
        rows = TIMES * LIMIT // _WIDTH
        places = _write_logs(FileStore(root / "objects"), rows)
        return [
            ingest,
            _measure_task("memory_sql", root, url, _select(places, rows), rows * _WIDTH),
        ]


def _measure_task(name: str, root: Path, url: str, task: TaskPayload, handled: int) -> Result:
    place = root / f"{name}.json"
    place.write_text(task.model_dump_json())
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.memory", str(root), url, str(place)], stdout=subprocess.PIPE
    )
    with MemoryWatch(worker.pid) as watch, worker:
        out, _ = worker.communicate()
    if worker.returncode:
        raise RuntimeError(f"{name}: the worker failed; its errors are above")
    done = json.loads(out.splitlines()[-1])
    gigabytes = {key: round(value / 1e9, 2) for key, value in watch.peak.items()}
    print(f"{name}: {handled / 1e9:.1f} GB handled, rows {done['rows']}, peak {gigabytes} GB")
    print(f"{name}: per process at the peak {watch.parts} MB")
    return Result(name, watch.peak["pss"], LIMIT, "bytes", watch.peak["pss"] / LIMIT, "<= 1")


@dataclass
class MemoryWatch:
    """Peak memory of a process and its descendants together."""

    pid: int
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("pss", "rss"), 0))
    parts: dict[str, int] = field(default_factory=dict[str, int])
    """Megabytes of the worker, the JVM and the Python processes at the peak."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "MemoryWatch":
        self._thread = threading.Thread(target=self._sample_memory)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample_memory(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            with suppress(psutil.NoSuchProcess):
                processes = [own := psutil.Process(self.pid), *own.children(recursive=True)]
                samples = [_read_memory(process) for process in processes]
                if sum(sample["pss"] for sample in samples) > self.peak["pss"]:
                    self.parts = _sum_by_process(processes, [sample["pss"] for sample in samples])
                for key in self.peak:
                    self.peak[key] = max(self.peak[key], sum(sample[key] for sample in samples))


def _sum_by_process(processes: Sequence[psutil.Process], sizes: Sequence[int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for n, (process, size) in enumerate(zip(processes, sizes, strict=True)):
        name = "worker" if n == 0 else "jvm" if process.name() == "java" else f"python {n}"
        totals[name] = totals.get(name, 0) + size // 2**20
    return totals


def _read_memory(process: psutil.Process) -> dict[str, int]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        full = process.memory_full_info()
        return {"pss": full.pss, "rss": full.rss}
    return {"pss": 0, "rss": 0}


def _write_logs(store: FileStore, rows: int) -> list[Path]:
    """Write files whose rows take ten times the limit in memory. They repeat, so files are small."""
    values = pa.array([bytes([n]) * _WIDTH for n in range(200)], pa.binary())
    schema = pa.schema(
        [("block_number", pa.int64()), ("log_index", pa.int64()), ("data", pa.binary())]
    )
    size = rows // _FILES
    return [_write_file(store, schema, values, n * size, size) for n in range(_FILES)]


def _write_file(store: FileStore, schema: Any, values: Any, first: int, rows: int) -> Path:
    number = np.arange(first, first + rows)
    table = pa.table(
        {
            "block_number": number // 10,
            "log_index": number % 10,
            "data": pa.DictionaryArray.from_arrays(pa.array(number % 199, pa.int32()), values),
        }
    )
    target = new_file(store, f"logs_{number[0] // 10}_{number[-1] // 10}.parquet")
    path = Path(store.jvm_path(target.key))
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, row_group_size=_GROUP, compression="zstd", store_schema=False)
    written = WrittenFile(target.name, rows, path.stat().st_size)
    mark_success(target, written, schema)
    return path


def _ingest(blocks: int) -> TaskPayload:
    tables = ["blocks", "transactions", "logs"]
    return _payload("cryo_ingest", {"rpc": "default"}, tables, 0, blocks - 1, [])


def _select(places: Sequence[Path], rows: int) -> TaskPayload:
    spans = [tuple(map(int, place.stem.split("_")[1:])) for place in places]
    partitions = [
        {
            "partition_key": f"{first}-{last}",
            "start": first,
            "end": last,
            "storage_ref": {
                "scheme": "file",
                "bucket": "bench",
                "prefix": f"{place.parent.name}/",
            },
        }
        for place, (first, last) in zip(places, spans, strict=True)
    ]
    logs_input = {
        "input_index": 0,
        "name": "logs",
        "dataset_uuid": uuid4(),
        "dataset_version": uuid4(),
        "partitions": partitions,
    }
    return _payload("sql", {"sql": _SQL}, ["answer"], 0, rows // 10, [logs_input])


def _payload(
    operator: str, config: Any, outputs: Sequence[str], start: int, end: int, inputs: Any
) -> TaskPayload:
    task_id = uuid4()
    return TaskPayload.model_validate(
        {
            "task_id": task_id,
            "attempt": 1,
            "job": {"dag_name": "bench", "name": operator},
            "operator": operator,
            "config": config,
            "scope": {"partition_key": f"{start}-{end}", "start": start, "end": end},
            "inputs": inputs,
            "outputs": [output(n, name, task_id) for n, name in enumerate(outputs)],
        }
    )


def main(root: Path, url: str, place: Path) -> None:
    """Run one task in a warm Spark session; this is the worker process."""
    from trace_etl.spark.runner import SparkRunner

    settings = SparkSettings(
        FileStore(root / "objects"),
        root / "spark",
        memory=heap_within(f"{LIMIT_MB}m", "local[2]"),
        rpc_pools={"default": (url,)},
    )
    runner = SparkRunner(settings)
    try:
        runner.warm()
        result = runner.run(TaskPayload.model_validate_json(place.read_text()))
    finally:
        runner.close()
    print(json.dumps({"rows": {one.output_index: one.row_count for one in result.outputs}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
