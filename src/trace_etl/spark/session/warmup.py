"""Warm Spark up before the first task: start its Python workers."""

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from trace_etl.objects.errors import ObjectMissing
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.conf import cores, is_connect
from trace_etl.spark.session.engine import SparkEngine
from trace_etl.spark.session.executors import freeze_imports
from trace_etl.spark.settings import SparkSettings


def warm_up(spark: SparkSession, settings: SparkSettings) -> None:
    """Start Python workers for reading and writing. Makes no RPC call.

    The planners of Python data sources start with the first read that needs them: most tasks have none, and they
    cost more to start than the workers.

    Raises SparkNotStarted if a Spark Connect server cannot run Trace's code or see its objects.
    """
    if is_connect(settings.master):
        _check_server(spark, settings)
    _start_workers(spark, cores(settings.master))


def _check_server(spark: SparkSession, settings: SparkSettings) -> None:
    """Check that the server can run our code and that its executors can read our objects."""
    store = settings.objects
    key = store.probe_key()
    store.put(key, b"")
    try:
        frame = spark.range(0, 1, 1, 1).mapInArrow(_ObjectProbe(store, key), "exists boolean")
        [row] = cast("list[Any]", frame.collect())
    except PySparkException as error:
        raise SparkNotStarted(
            "the Spark Connect server cannot run Trace's code; install the same trace-etl on "
            f"it, with Python {sys.version_info.major}.{sys.version_info.minor}: "
            f"{_find_reason(error)}"
        ) from error
    finally:
        store.delete(key)
    if not row["exists"]:
        raise SparkNotStarted(
            f"the Spark Connect server does not see {store.url} (TRACE_OBJECTS_URL); "
            "mount it on the server under the same path"
        )


@dataclass(frozen=True)
class _ObjectProbe:
    """Checks on an executor whether it can read an object."""

    store: ObjectStore
    key: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"exists": [self._exists()]})

    def _exists(self) -> bool:
        try:
            self.store.get(self.key)
        except ObjectMissing:
            return False
        return True


def _find_reason(error: PySparkException) -> str:
    """The last line of a Python traceback in the error, or else the first line of the error."""
    reasons = re.findall(r"^\w+(?:\.\w+)*(?:Error|Exception): .*$", str(error), re.MULTILINE)
    return reasons[-1] if reasons else str(error).strip().partition("\n")[0]


def _start_workers(spark: SparkSession, count: int) -> None:
    rows = spark.range(0, count, 1, count)
    rows.mapInArrow(_copy_batches, "id bigint").mapInArrow(_copy_batches, "id bigint").collect()


def _copy_batches(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
    importlib.import_module("pandas")  # pyarrow imports pandas when it makes an array
    freeze_imports()


def plan_read(spark: SparkSession, engine: SparkEngine) -> None:
    """Start the planners of Python data sources. Makes no RPC call."""
    frame = (
        spark.read.format("evm")
        .option("rpc_url", "http://127.0.0.1")
        .option("dataset", "blocks")
        .option("start", 0)
        .option("end", 0)
        .load()
    )
    engine.plan_frame(frame)
