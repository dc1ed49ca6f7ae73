"""Executors hold only a few row groups in memory, whatever the size of the file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trace_etl.spark.io.parquet import ROW_GROUP_BYTES

TIMES = 6
# In a separate process, because Arrow reports the peak memory of the process.
SCRIPT = """
import json, sys
from pathlib import Path
import pyarrow as pa
from trace_etl.spark.io.parquet import ROW_GROUP_BYTES, open_parquet_file
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.io.scan import Limit, Scan

store = FileStore(Path(sys.argv[1]))
wanted, is_archive = int(sys.argv[2]), sys.argv[3] == "archive"
pool = pa.default_memory_pool()
schema = pa.schema([("block_number", pa.int64()), ("data", pa.binary())])
size = 2000
KEY = "bucket/wide.parquet"

def batch(n):
    numbers = pa.array(range(n * size, (n + 1) * size), pa.int64())
    return pa.record_batch([numbers, pa.array([bytes([n]) * 2048] * size)], schema=schema)

count = wanted // batch(0).nbytes + 1
with open_parquet_file(store, KEY, schema, is_archive=is_archive) as file:
    for n in range(count):
        file.write(batch(n))
    rows = file.finish().rows
written = pool.max_memory()
scan = Scan(store, (KEY,), schema)
seen = [(int(one["block_number"][0].as_py()), one.num_rows) for one in scan.batches()]
half = Scan(store, (KEY,), schema, (Limit("block_number", ">=", rows // 2),))
print(json.dumps({
    "written": written, "read": pool.max_memory(), "rows": rows,
    "in order": seen == sorted(seen), "seen": sum(n for _, n in seen),
    "half": sum(one.num_rows for one in half.batches()),
}))
"""


@pytest.mark.parametrize("kind", ["usual", "archive"])
def test_many_row_groups_are_written_and_read_in_the_memory_of_a_few(
    tmp_path: Path, kind: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(TIMES * ROW_GROUP_BYTES), kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        check=True,
    )
    measured = json.loads(result.stdout)
    assert measured["seen"] == measured["rows"] and measured["in order"]
    assert measured["half"] == measured["rows"] - measured["rows"] // 2
    assert measured["written"] <= 3 * ROW_GROUP_BYTES
    assert measured["read"] <= 4 * ROW_GROUP_BYTES
