"""Tasks through the runner: files, names, counts, markers, concurrency, cancellation."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import psutil
import pyarrow.parquet as pq
import pytest

from support.chain.chain_rows import expected
from support.spark.spark_tasks import (
    as_input,
    directory,
    ingest,
    marker,
    output_of,
    range_scope,
    rows,
    select,
    task,
)
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import TaskPayload
from trace_etl.devtools.devchain import DevChain
from trace_etl.objects.errors import StorageFull, StorageUnwritable
from trace_etl.proof.content_hash import hash_rows
from trace_etl.spark.errors import (
    BadTask,
    InputMissing,
    NotFinal,
    RpcUnreachable,
)
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.io import inputs, parquet
from trace_etl.spark.operators.cryo_ingest import FetchRange
from trace_etl.spark.runner import SparkRunner

TABLES = ("blocks", "transactions", "logs")
DEADLINE = 60.0


def _files(root: Path, payload: TaskPayload, name: str) -> set[str]:
    return {path.name for path in directory(root, payload, name).iterdir()}


def test_an_ingest_writes_every_row_of_every_table(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    payload = ingest(3, 27)
    runner.run(payload)
    assert {name: rows(objects, payload, name) for name in TABLES} == expected(chain, 3, 27)


def test_python_workers_are_forked_from_a_process_that_has_imported_their_modules(
    runner: SparkRunner,
) -> None:
    runner.run(ingest(0, 1))
    engine = cast("Any", runner.session.engine)
    started = psutil.Process(engine.jvm.process.pid).children(recursive=True)
    workers = [p for p in started if p.cmdline()[-1] == "pyspark.worker"]
    # PySpark's own daemon would run here if an import had started a thread.
    assert {p.cmdline()[-2] for p in workers} == {"trace_etl.spark.session.python_daemon"}
    daemons = [p for p in workers if p.parent() not in workers]
    assert len(workers) > len(daemons) and {p.num_threads() for p in daemons} == {1}


def test_only_the_process_that_forks_workers_imports_what_they_need() -> None:
    script = """
        import pickle, sys
        import trace_etl.spark.evm.source  # what the planners of a read import
        assert "pandas" not in sys.modules, "the planners import pandas"
        from trace_etl.spark.session.python_daemon import import_modules
        import_modules()
        before = {*sys.modules}
        pickle.load(sys.stdin.buffer)
        assert {*sys.modules} == before, {*sys.modules} - before
        assert "polars" not in before
    """
    fetch = FetchRange(RpcSource(("http://127.0.0.1:1",)), TABLES, 0, 9)
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], input=pickle.dumps(fetch), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_an_ingest_may_have_a_subset_of_the_outputs(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    payload = ingest(0, 9, outputs=["logs"])
    runner.run(payload)
    assert rows(objects, payload, "logs") == expected(chain, 0, 9)["logs"]


def test_a_file_is_named_after_its_range_and_listed_in_its_marker(
    runner: SparkRunner, objects: Path
) -> None:
    payload = ingest(10, 19)
    result = runner.run(payload)
    for output in result.outputs:
        name = payload.outputs[output.output_index or 0].name
        file = directory(objects, payload, name) / f"{name}_10_19.parquet"
        assert _files(objects, payload, name) == {"_SUCCESS", file.name}
        written = marker(objects, payload, name)
        stored = pq.ParquetFile(file).metadata
        one = {"name": file.name, "rows": stored.num_rows, "bytes": file.stat().st_size}
        content = file.read_bytes()
        assert written["files"] == [{**one, "sha256": sha256(content).hexdigest()}]
        opened = pq.ParquetFile(file)
        hashes = hash_rows(opened.schema_arrow, opened.iter_batches())
        assert (written["content_hash"], written["row_sum"]) == (
            hashes.content_hash,
            hashes.row_sum,
        )
        assert (written["rows"], written["bytes"]) == (one["rows"], one["bytes"])
        assert (output.row_count, output.byte_count) == (one["rows"], one["bytes"])
        assert [c["name"] for c in written["schema"]] == stored.schema.to_arrow_schema().names


def test_the_result_has_the_fields_of_the_completion_call(runner: SparkRunner) -> None:
    payload = ingest(10, 19, outputs=["blocks"])
    result = runner.run(payload)
    given = payload.outputs[0]
    assert result.outputs[0].partition_key == "10-19"
    [published], [event] = result.datasets_published, result.events
    assert (published.range_start, published.range_end) == (10, 19)
    assert published.storage_ref == given.storage_ref
    assert (event.dataset_uuid, event.dataset_version) == (
        given.dataset_uuid,
        given.dataset_version,
    )
    assert (event.partition_key, event.start, event.end) == ("10-19", 10, 19)


def test_files_are_compressed_sorted_by_block_and_have_statistics(
    runner: SparkRunner, objects: Path
) -> None:
    payload = ingest(0, 39)
    runner.run(payload)
    path = directory(objects, payload, "logs")
    group = pq.ParquetFile(path / "logs_0_39.parquet").metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["block_number"].statistics.has_min_max
    keys = [(row["block_number"], row["log_index"]) for row in rows(objects, payload, "logs")]
    assert keys == sorted(keys)


def test_the_same_range_twice_gives_the_same_bytes(runner: SparkRunner, objects: Path) -> None:
    first, second = ingest(0, 29), ingest(0, 29)
    runner.run(first)
    runner.run(second)
    for name in TABLES:
        ones = [directory(objects, done, name) / f"{name}_0_29.parquet" for done in (first, second)]
        assert ones[0].read_bytes() == ones[1].read_bytes()


def test_a_range_fetched_by_several_spark_tasks_is_written_in_order(
    runner: SparkRunner, objects: Path, chain: DevChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_etl.spark.operators.cryo_ingest._BLOCKS_PER_TASK", 7)
    payload = ingest(2, 33)
    runner.run(payload)
    assert {name: rows(objects, payload, name) for name in TABLES} == expected(chain, 2, 33)


def test_concurrent_tasks_do_not_mix_their_inputs_and_outputs(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    source = ingest(0, 29)
    runner.run(source)
    given = as_input(source, name="logs")
    tasks = [
        ingest(0, 19),
        ingest(20, 39),
        *(
            select(f"SELECT {n} AS mine, count(*) AS n FROM logs", given, scope=range_scope(0, n))
            for n in range(4, 10)
        ),
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(runner.run, tasks))
    for payload, span in ((tasks[0], (0, 19)), (tasks[1], (20, 39))):
        assert {name: rows(objects, payload, name) for name in TABLES} == expected(chain, *span)
    for n, payload in zip(range(4, 10), tasks[2:], strict=True):
        wanted = len(expected(chain, 0, n)["logs"])
        assert rows(objects, payload, "answer") == [{"mine": n, "n": wanted}]


def test_a_range_splitter_cuts_at_multiples_and_writes_no_files(
    runner: SparkRunner, objects: Path
) -> None:
    payload = task("range_splitter", {"size": 100}, ["ranges"], scope=range_scope(50, 320))
    result = runner.run(payload)
    assert [event.partition_key for event in result.events] == [
        "50-99",
        "100-199",
        "200-299",
        "300-320",
    ]
    assert result.outputs == [] and result.datasets_published == []
    assert not directory(objects, payload, "ranges").exists()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (task("brew_coffee", {}, ["cup"]), "operator brew_coffee"),
        (task("cryo_ingest", {"rpc": "default"}, ["blocks"]), "no block range"),
        (task("cryo_ingest", {}, ["receipts"], scope=range_scope(0, 1)), "outputs"),
        (ingest(0, 1, pool="nowhere"), "unknown RPC pool nowhere"),
        (task("sql", {"query": "SELECT 1"}, ["a"]), "config.sql"),
        (task("range_splitter", {"size": 0}, ["a"], scope=range_scope(0, 1)), "config.size"),
    ],
)
def test_an_invalid_task_is_refused_with_a_reason(
    runner: SparkRunner, payload: TaskPayload, message: str
) -> None:
    with pytest.raises(BadTask, match=message) as caught:
        runner.run(payload)
    assert not caught.value.retryable


def test_an_unreachable_node_is_named_and_nothing_is_committed(
    runner: SparkRunner, objects: Path, pools: dict[str, tuple[str, ...]]
) -> None:
    pools["dead"] = ("http://127.0.0.1:9/secretkey",)
    payload = ingest(0, 9, pool="dead")
    with pytest.raises(RpcUnreachable, match=r"of finalized at 127\.0\.0\.1:9") as caught:
        runner.run(payload)
    assert caught.value.retryable and "secretkey" not in str(caught.value)
    assert not list(directory(objects, payload, "blocks").rglob("*"))


def test_a_chain_shorter_than_the_range_commits_nothing(runner: SparkRunner, objects: Path) -> None:
    payload = ingest(50, 69)
    with pytest.raises(NotFinal, match=r"block 69 is not final yet: .* reports block 59") as caught:
        runner.run(payload)
    assert caught.value.retryable and caught.value.is_premature
    for name in TABLES:
        path = directory(objects, payload, name)
        assert not path.exists() or list(path.iterdir()) == []


def test_a_full_disk_is_reported_and_no_file_remains(runner: SparkRunner, objects: Path) -> None:
    payload = select("SELECT id FROM range(200000)")
    path = directory(objects, payload, "answer")
    path.mkdir(parents=True)
    # Writing to /dev/full fails like a full disk. The writer creates its first draft at this path.
    (path / "answer.parquet#0").symlink_to("/dev/full")
    with pytest.raises(StorageFull, match=f"cannot write {path}/answer.parquet: No space left"):
        runner.run(payload)
    assert list(path.iterdir()) == []


def test_an_unwritable_prefix_is_reported(runner: SparkRunner, objects: Path) -> None:
    payload = select("SELECT 1 AS one")
    path = directory(objects, payload, "answer")
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file where a directory should be")
    with pytest.raises(StorageUnwritable, match=f"cannot write {path}"):
        runner.run(payload)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "s3"}, "storage scheme s3"),
        ({"prefix": "../../etc/"}, "leads out of its bucket"),
        ({"prefix": "/etc/"}, "leads out of its bucket"),
    ],
)
def test_a_storage_location_outside_the_bucket_is_refused(
    runner: SparkRunner, change: dict[str, str], message: str
) -> None:
    given = select("SELECT 1 AS one")
    path = given.outputs[0].storage_ref.model_copy(update=change)
    output = given.outputs[0].model_copy(update={"storage_ref": path})
    with pytest.raises(BadTask, match=message):
        runner.run(given.model_copy(update={"outputs": [output]}))


def test_a_failed_task_does_not_affect_the_next_one(runner: SparkRunner, objects: Path) -> None:
    with pytest.raises(NotFinal):
        runner.run(ingest(59, 60))
    payload = select("SELECT 1 AS one")
    runner.run(payload)
    assert rows(objects, payload, "answer") == [{"one": 1}]


def test_a_missing_input_partition_is_reported(runner: SparkRunner, objects: Path) -> None:
    source = ingest(0, 9, outputs=["blocks"])
    runner.run(source)
    (directory(objects, source, "blocks") / "_SUCCESS").unlink()
    with pytest.raises(InputMissing, match="input blocks, partition 0-9"):
        runner.run(select("SELECT * FROM blocks", as_input(source, name="blocks")))


def test_partitions_with_other_columns_are_read_together(
    runner: SparkRunner, objects: Path, chain: DevChain
) -> None:
    old = ingest(0, 9, outputs=["blocks"])
    scope = range_scope(10, 19)
    new = task("cryo_ingest", {"columns": ["parent_hash", "size"]}, ["blocks"], scope=scope)
    for payload in (old, new):
        runner.run(payload)
    given = as_input(old, new, name="blocks")
    payload = select("SELECT block_number, author, parent_hash, size FROM blocks", given)
    runner.run(payload)
    found = rows(objects, payload, "answer")
    blocks = expected(chain, 9, 19)["blocks"]
    hashes = [block["block_hash"] for block in blocks][:-1]
    assert [row["parent_hash"] for row in found] == [None] * 10 + hashes
    assert [row["author"] is None for row in found] == [False] * 10 + [True] * 10
    assert all(row["size"] for row in found[10:])
    # Rows that an executor reads without the JVM have the same columns.
    compacted = task("parquet_compact", {}, ["blocks"], scope=range_scope(0, 19), inputs=[given])
    runner.run(compacted)
    copied = rows(objects, compacted, "blocks")
    assert [row["parent_hash"] for row in copied] == [None] * 10 + hashes


def test_an_input_without_partitions_is_a_retryable_error(runner: SparkRunner) -> None:
    given = {**as_input(ingest(0, 9), name="logs"), "partitions": []}
    with pytest.raises(InputMissing, match="input logs") as caught:
        runner.run(select("SELECT * FROM logs", given))
    assert caught.value.retryable


def test_canceling_an_unknown_task_does_nothing(runner: SparkRunner) -> None:
    runner.cancel(ingest(0, 1).task_id)


def test_row_groups_have_one_size_for_any_input_batches(
    runner: SparkRunner, objects: Path, tmp_path: Path
) -> None:
    rows_wanted = parquet.ROW_GROUP_ROWS * 2 + 5
    payload = select(f"SELECT id AS block_number FROM range({rows_wanted})")
    runner.run(payload)
    file = directory(objects, payload, "answer") / "answer.parquet"
    stored = pq.ParquetFile(file).metadata
    groups = [stored.row_group(i).num_rows for i in range(stored.num_row_groups)]
    assert groups == [parquet.ROW_GROUP_ROWS, parquet.ROW_GROUP_ROWS, 5]
    assert output_of(payload, "answer").name == "answer"


def test_a_cursor_scope_reads_new_rows_and_publishes_them_as_a_partition(
    runner: SparkRunner, objects: Path
) -> None:
    source = ingest(0, 29, outputs=["blocks"])
    runner.run(source)
    sql = "SELECT min(block_number) AS first, max(block_number) AS last FROM blocks"
    scopes = ({"cursor": 11}, {"cursor": 19, "after": 11})
    for scope, wanted in zip(scopes, ((0, 11), (12, 19)), strict=True):
        payload = select(sql, as_input(source, name="blocks"), scope=scope)
        result = runner.run(payload)
        assert rows(objects, payload, "answer") == [{"first": wanted[0], "last": wanted[1]}]
        [published], [event] = result.datasets_published, result.events
        assert (published.range_start, published.range_end) == wanted
        assert event.partition_key == f"{wanted[0]}-{wanted[1]}" and event.cursor is None
        assert result.outputs[0].cursor == scope["cursor"]


def test_a_cursor_below_the_position_already_read_gives_no_result(runner: SparkRunner) -> None:
    source = ingest(0, 9, outputs=["blocks"])
    given = as_input(source, name="blocks")  # never read
    payload = select("SELECT * FROM blocks", given, scope={"cursor": 5, "after": 7})
    assert runner.run(payload) == TaskResult()


def test_scope_and_where_are_pushed_down_to_the_files(runner: SparkRunner) -> None:
    source = ingest(0, 29, outputs=["logs"])
    runner.run(source)
    topic = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    given = as_input(source, name="logs", where={"topic0": topic, "transaction_index": [1, 2]})
    payload = select("SELECT * FROM logs", given, scope=range_scope(3, 7))
    with ExitStack() as leases:
        spark = leases.enter_context(runner.session.lease(runner.session.get(), []))
        spark.conf.set("spark.sql.maxMetadataStringLength", "10000")  # do not truncate the plan
        store = runner.settings.objects
        loaded = inputs.load(spark, payload.inputs[0], payload.scope, store)
        plan = cast("Any", loaded.frame)._jdf.queryExecution().executedPlan().toString()
    pushed = plan[plan.index("PushedFilters:") :]
    for part in (
        "GreaterThanOrEqual(block_number,3)",
        "LessThanOrEqual(block_number,7)",
        "EqualTo(topic0,",
        "In(transaction_index, [1,2])",
    ):
        assert part in pushed, pushed
