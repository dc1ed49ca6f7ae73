"""What a worker and all its children hold at most, on work larger than memory would hold.

The worker is a process of its own; what it, its JVM and its Python workers hold together is looked
at all the time. Counted are the pages that are theirs (PSS: a page that several share counts once);
the sum of resident sizes, which counts it for each, is printed beside it.
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

LIMIT_MB = 1792  # the least there is: Spark does not start with a smaller heap
LIMIT = LIMIT_MB * 1024 * 1024
TIMES = 10
_FILES, _WIDTH, _GROUP = 20, 1024, 50_000
_EVERY = 0.1
# Every tenth row, in the order of blocks: all are read, and more is sorted than the heap holds.
_SQL = "SELECT block_number, log_index, data FROM logs WHERE log_index = 0"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        root = Path(name)
        with replay.served("-m", "bench.endless") as url:
            # More than one Spark task reads: the rows go through a shuffle too.
            blocks = TIMES * LIMIT // endless.bytes_per_block() + 1
            handled = blocks * endless.bytes_per_block()
            ingest = _measured("memory_ingest", root, url, _ingest(blocks), handled)
        rows = TIMES * LIMIT // _WIDTH
        places = _write_logs(FileStore(root / "objects"), rows)
        return [ingest, _measured("memory_sql", root, url, _select(places, rows), rows * _WIDTH)]


def _measured(name: str, root: Path, url: str, task: TaskPayload, handled: int) -> Result:
    place = root / f"{name}.json"
    place.write_text(task.model_dump_json())
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.memory", str(root), url, str(place)], stdout=subprocess.PIPE
    )
    with Watch(worker.pid) as watch, worker:
        out, _ = worker.communicate()
    if worker.returncode:
        raise RuntimeError(f"{name}: the worker failed; its errors are above")
    done = json.loads(out.splitlines()[-1])
    gigabytes = {key: round(value / 1e9, 2) for key, value in watch.most.items()}
    print(f"{name}: {handled / 1e9:.1f} GB handled, rows {done['rows']}, at most {gigabytes} GB")
    print(f"{name}: at its height {watch.parts} MB")
    return Result(name, watch.most["pss"], LIMIT, "bytes", watch.most["pss"] / LIMIT, "<= 1")


@dataclass
class Watch:
    """The most that a process and its descendants held together."""

    pid: int
    most: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("pss", "rss"), 0))
    parts: dict[str, int] = field(default_factory=dict[str, int])
    """Megabytes of the worker, the JVM and Python's processes when they were most together."""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            with suppress(psutil.NoSuchProcess):
                family = [own := psutil.Process(self.pid), *own.children(recursive=True)]
                held = [_held(one) for one in family]
                if sum(one["pss"] for one in held) > self.most["pss"]:
                    self.parts = _parts(family, [one["pss"] for one in held])
                for key in self.most:
                    self.most[key] = max(self.most[key], sum(one[key] for one in held))


def _parts(family: Sequence[psutil.Process], held: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for n, (process, size) in enumerate(zip(family, held, strict=True)):
        name = "worker" if n == 0 else "jvm" if process.name() == "java" else f"python {n}"
        found[name] = found.get(name, 0) + size // 2**20
    return found


def _held(process: psutil.Process) -> dict[str, int]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        full = process.memory_full_info()
        return {"pss": full.pss, "rss": full.rss}
    return {"pss": 0, "rss": 0}


def _write_logs(store: FileStore, rows: int) -> list[Path]:
    """Files whose rows would take ten times the limit; on disk, where they repeat, a little."""
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
    path = Path(store.uri(target.key))
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
    given = {
        "input_index": 0,
        "name": "logs",
        "dataset_uuid": uuid4(),
        "dataset_version": uuid4(),
        "partitions": partitions,
    }
    return _payload("sql", {"sql": _SQL}, ["answer"], 0, rows // 10, [given])


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
    """The worker: one warm Spark, one task."""
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
