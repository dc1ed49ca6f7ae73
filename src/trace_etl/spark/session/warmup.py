"""What the first tasks would wait for, done ahead: worker processes and the source's planner."""

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.conf import cores, is_connect
from trace_etl.spark.session.engine import SparkEngine
from trace_etl.spark.session.executors import freeze_imports
from trace_etl.spark.settings import SparkSettings


def warm_up(spark: SparkSession, engine: SparkEngine, settings: SparkSettings) -> None:
    """Start Python workers for reading and writing, and the planner; touches no RPC.

    Raises SparkNotStarted where a server cannot do our work.
    """
    if is_connect(settings.master):
        _check_reach(spark, settings)
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(_start_workers, spark, cores(settings.master)),
            pool.submit(_plan_a_read, spark, engine),
        ]:
            done.result()


def _check_reach(spark: SparkSession, settings: SparkSettings) -> None:
    """Whether the server's Python has our code, and its machines our objects."""
    settings.objects_root.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=settings.objects_root, prefix=".reach-") as probe:
        looks = spark.range(0, 1, 1, 1).mapInArrow(_Looks(probe.name), "is_there boolean")
        try:
            [row] = cast("list[Any]", looks.collect())
        except PySparkException as error:
            raise SparkNotStarted(
                "the Spark Connect server cannot run Trace's code; its Python must be ours "
                f"({sys.version_info.major}.{sys.version_info.minor}), with the same trace-etl: "
                f"{_complaint(error)}"
            ) from error
    if not row["is_there"]:
        raise SparkNotStarted(
            f"the Spark Connect server does not see {settings.objects_root} (TRACE_OBJECTS_ROOT); "
            "mount it there under the same path"
        )


@dataclass(frozen=True)
class _Looks:
    """Runs on an executor: whether a file is there."""

    path: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"is_there": [Path(self.path).exists()]})


def _complaint(error: PySparkException) -> str:
    """The line of a Python traceback that says what is wrong, or the first of any other."""
    found = re.findall(r"^\w+(?:\.\w+)*(?:Error|Exception): .*$", str(error), re.MULTILINE)
    return found[-1] if found else str(error).strip().partition("\n")[0]


def _start_workers(spark: SparkSession, count: int) -> None:
    rows = spark.range(0, count, 1, count)
    rows.mapInArrow(_pass, "id bigint").mapInArrow(_pass, "id bigint").collect()


def _pass(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    importlib.import_module("pandas")  # pyarrow wants it as soon as it makes an array
    freeze_imports()


def _plan_a_read(spark: SparkSession, engine: SparkEngine) -> None:
    frame = (
        spark.read.format("evm")
        .option("rpc_url", "http://127.0.0.1")
        .option("dataset", "blocks")
        .option("start", 0)
        .option("end", 0)
        .load()
    )
    engine.plan(frame)
