"""A batch file: whatever a producer writes to its prefix, the sink reports what is wrong."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from trace_etl.api.task.buffers import BufferBatch
from trace_etl.model.storage import attempt_prefix, buffer_prefix
from trace_etl.objects.file_store import FileStore
from trace_etl.sink import batch_files, columnar
from trace_etl.sink.errors import BadBatch, BatchMissing

COLUMNS = [{"name": "x", "type": "double"}, {"name": "n", "type": "long"}]


class Artifact:
    """One batch of one attempt, in its own object store."""

    def __init__(self, root: Path, name: str = "batch.jsonl") -> None:
        dataset_uuid, task_id = uuid4(), uuid4()
        prefix = attempt_prefix(buffer_prefix(dataset_uuid), task_id, 1)
        self.root, self.attempt_directory = root, root / "trace" / prefix
        self.path = self.attempt_directory / name
        self.attempt_directory.mkdir(parents=True)
        self.batch = BufferBatch.model_validate(
            {
                "publish_id": uuid4(),
                "publish_no": 1,
                "org_id": UUID(int=1),
                "task_id": task_id,
                "attempt": 1,
                "dataset_uuid": dataset_uuid,
                "dataset_version": uuid4(),
                "batch_uri": f"s3://trace/{prefix}{name}",
                "content_type": "application/jsonl",
                "record_count": None,
                "columns": COLUMNS,
                "unique_key": ["x"],
            }
        )

    def read(self, content: str | None = None) -> list[tuple[Any, ...]]:
        if content is not None:
            self.path.write_text(content)
        table = batch_files.read_rows(self.batch, FileStore(self.root), max_bytes=2**20)
        return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return Artifact(tmp_path)


def test_a_pipe_does_not_block_the_sink(artifact: Artifact) -> None:
    os.mkfifo(artifact.path)
    with pytest.raises(BadBatch, match="is not a file"):
        artifact.read()


def test_a_directory_is_refused(artifact: Artifact) -> None:
    artifact.path.mkdir()
    with pytest.raises(BadBatch, match="is not a file"):
        artifact.read()


@pytest.mark.parametrize("target", ["../../secret", "beside"])
def test_a_link_is_not_followed(artifact: Artifact, target: str) -> None:
    (artifact.attempt_directory / target).write_text('{"x": 1}')
    artifact.path.symlink_to(target)
    with pytest.raises(BadBatch, match="a link leads to it"):
        artifact.read()


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path, "inner/batch.jsonl")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "batch.jsonl").write_text('{"x": 1}')
    (artifact.attempt_directory / "inner").symlink_to(elsewhere)
    with pytest.raises(BadBatch, match="a link leads to it"):
        artifact.read()
    (artifact.attempt_directory / "inner").unlink()
    with pytest.raises(BatchMissing):
        artifact.read()
    (artifact.attempt_directory / "inner").mkdir()
    assert artifact.read('{"x": 1}') == [(1.0, None)]


def test_a_name_that_occurs_twice_in_a_row_is_refused(artifact: Artifact) -> None:
    with pytest.raises(BadBatch, match="line 2: 'n' occurs twice"):
        artifact.read('{"x": 1, "n": 1}\n{"x": 2, "n": 1, "n": 2}')


@pytest.mark.parametrize("depth", [100_000, 400])
def test_deeply_nested_json_is_refused_with_its_line(artifact: Artifact, depth: int) -> None:
    with pytest.raises(BadBatch, match="line 2"):
        artifact.read('{"x": 1}\n{"x": 2, "n": ' + "[" * depth + "]" * depth + "}")


@pytest.mark.parametrize("given", ["1_000", " 7", "+7", "٧", "7.0", ""])
def test_a_quoted_number_may_contain_only_digits(artifact: Artifact, given: str) -> None:
    with pytest.raises(BadBatch, match="'n' must be long"):
        artifact.read(json.dumps({"x": 1, "n": given}))
    assert artifact.read(json.dumps({"x": 1, "n": "-007"})) == [(1.0, -7)]


def test_too_many_rows_are_refused(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_files, "MAX_BATCH_ROWS", 2)
    assert len(artifact.read('{"x": 1}\n{"x": 2}\n')) == 2
    with pytest.raises(BadBatch, match="more than 2 rows; split it"):
        artifact.read('{"x": 1}\n{"x": 2}\n{"x": 3}')


# 160 MB: more than the allocator may keep of the memory that earlier tests freed, which the limit does not count.
ITEMS = 20_000_000


def one_row_with_a_long_list() -> bytes:
    """A Parquet file of some hundred bytes, by its footer one row and 114 bytes."""
    offsets = pa.array([0, ITEMS], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(ITEMS, np.int64)))
    output = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": lists}), output, compression="zstd")
    return output.getvalue().to_pybytes()


def compressed_zeros() -> bytes:
    """An Arrow stream with one batch whose size is known only when it is decoded."""
    batch = pa.record_batch({"n": pa.array(np.zeros(ITEMS, np.int64))})
    output = pa.BufferOutputStream()
    with ipc.new_stream(
        output, batch.schema, options=ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_batch(batch)
    return output.getvalue().to_pybytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit needs Linux")
@pytest.mark.parametrize(
    ("make", "content_type"),
    [(one_row_with_a_long_list, columnar.PARQUET), (compressed_zeros, columnar.ARROW_STREAM)],
)
def test_a_small_file_that_expands_is_refused_before_it_uses_the_memory(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], bytes],
    content_type: str,
) -> None:
    content, usual = make(), pa.default_memory_pool()
    assert len(content) < 10_000
    artifact.path.write_bytes(content)
    artifact.batch = artifact.batch.model_copy(update={"content_type": content_type})
    monkeypatch.setattr(columnar, "MAX_DECODER_BYTES", 8 * 2**20)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with pytest.raises(
            BadBatch, match=r"(needs more than|has more than) 8388608 bytes of memory; split"
        ):
            artifact.read()
    finally:
        pa.set_memory_pool(usual)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


FIRST_FILE = """
import resource, sys
from pathlib import Path
from trace_etl.sink import columnar

def read_data_size():
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()

columnar.MAX_DECODER_BYTES = 4 * 2**30
before = read_data_size()
columnar.read_parquet(sys.stdin.buffer.read(), None)
print(read_data_size() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit needs Linux")
def test_the_allocator_reserves_no_memory_with_the_first_file_of_a_process() -> None:
    output = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2, 3]}), output)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_FILE],
        input=output.getvalue().to_pybytes(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100 * 2**20
