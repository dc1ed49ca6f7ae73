"""Load inputs as DataFrames: the files of the pinned partitions, restricted to the task's scope."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, reduce
from operator import ge, gt, le, lt
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    StructType,
    TimestampNTZType,
)

from trace_etl.api.task.lifecycle import SuccessMarker
from trace_etl.api.task.payload import InputPartition, Scope, TaskInput
from trace_etl.model.errors import OutputNotReady
from trace_etl.objects.errors import InvalidKey, StorageError
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.errors import BadTask, InputMissing, NothingCommitted
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.io.object_source import read_objects
from trace_etl.spark.io.scan import Limit, Scan
from trace_etl.spark.io.storage import file_key

_BLOCK = "block_number"
# Below this size one core finishes before a shuffle has begun, so every stage runs as one task.
SMALL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Input:
    """One input, ready to use."""

    name: str
    frame: DataFrame
    is_small: bool
    scan: Scan | None = None
    """The same rows for executors that read files themselves; None where only Spark can."""
    source: str = ""
    """The name of the data source if Python workers read the files."""
    select: Callable[[frozenset[str]], DataFrame] | None = None
    """Returns a frame of the same columns that reads only some of them. The others are null."""


def open_partition(task_input: TaskInput, partition: InputPartition, store: ObjectStore) -> Scan:
    """Return the files of one partition. Raises InputMissing or BadTask."""
    marker = _read_marker(task_input.name, partition, store)
    schema = _find_schema(task_input.name, [marker])
    keys = [file_key(store, partition.storage_ref, file.name) for file in marker.files]
    return Scan(store, tuple(keys), to_arrow_schema(schema, timezone="UTC"))


def read_made_from(partition: InputPartition, store: ObjectStore) -> list[str] | None:
    """Return the digests of the inputs of a partition, if new input partitions can be added to it."""
    return _read_marker("previous output", partition, store).made_from


def load(
    spark: SparkSession,
    task_input: TaskInput,
    scope: Scope | None,
    store: ObjectStore,
    time_range: tuple[datetime, datetime] | None = None,
) -> Input:
    """Load the rows of an input that are in the task's scope. Raises InputMissing or BadTask.

    `time_range` restricts the rows of a task that makes a day or an hour.
    """
    if not task_input.partitions:
        raise NothingCommitted(f"input {task_input.name}: no partition is committed yet")
    overlapping = [partition for partition in task_input.partitions if _overlaps(partition, scope)]
    partitions = sorted(overlapping, key=lambda part: (part.start is None, part.start or 0))
    markers = [
        _read_marker(task_input.name, part, store)
        for part in partitions or task_input.partitions[:1]
    ]
    schema = _find_schema(task_input.name, markers)
    keys = [
        file_key(store, part.storage_ref, file.name)
        for part, marker in zip(partitions, markers, strict=False)
        for file in marker.files
    ]
    if not all(key.endswith(".parquet") for key in keys):
        raise BadTask(
            f"input {task_input.name} has CSV or JSON files, which no job can read; remove its `format`"
        )
    is_small = sum(marker.bytes for marker in markers) <= SMALL_BYTES
    limits = [] if _are_inside(partitions, scope) else _list_limits(schema, scope)
    if time_range is not None and task_input.time_column is not None:
        limits = [*limits, *_list_time_limits(task_input, schema, time_range)]
    conditions = [*map(_make_condition, limits), *where_columns(task_input, schema)]
    scan = Scan(store, tuple(keys), to_arrow_schema(schema, timezone="UTC"), tuple(limits))

    def make_frame(chosen: Scan) -> DataFrame:
        frame = _filter_rows(read_files(spark, schema, chosen), conditions)
        return frame.coalesce(1) if is_small else frame

    # The `where` of an edge compares by the rules of SQL, which Arrow does not have.
    can_scan = bool(keys) and not task_input.where
    return Input(
        task_input.name,
        make_frame(scan),
        is_small,
        scan if can_scan and _are_in_order(partitions) else None,
        scan.name,
        lambda columns: make_frame(scan.select(columns)),
    )


def _are_in_order(partitions: list[InputPartition]) -> bool:
    """Whether the files follow each other by block."""
    starts = [part.start for part in partitions]
    return len(starts) == 1 or (None not in starts and starts == sorted(cast("list[int]", starts)))


def _are_inside(partitions: list[InputPartition], scope: Scope | None) -> bool:
    """Whether the scope covers the partitions completely, so that no row must be filtered."""
    span = scope.blocks if scope else None
    return span is not None and all(
        part.start is not None
        and part.end is not None
        and span.start <= part.start
        and part.end <= span.end
        for part in partitions
    )


def _overlaps(partition: InputPartition, scope: Scope | None) -> bool:
    span = scope.blocks if scope else None
    if span is None or partition.start is None or partition.end is None:
        return True
    return partition.start <= span.end and partition.end >= span.start


def _read_marker(name: str, partition: InputPartition, store: ObjectStore) -> SuccessMarker:
    try:
        return read_marker(store, partition.storage_ref.ref())
    except InvalidKey as error:
        raise BadTask(f"input {name}: {error}") from error
    except (OutputNotReady, StorageError) as error:
        raise InputMissing(
            f"input {name}, partition {partition.partition_key}: cannot read the marker: {error}"
        ) from error


def _find_schema(name: str, markers: list[SuccessMarker]) -> StructType:
    """The columns of all partitions by name. A partition without a column has nulls in it."""
    types: dict[str, str] = {}
    for marker in markers:
        for column in marker.schema_:
            kind = types.setdefault(column["name"], column["type"])
            if kind != column["type"]:
                raise BadTask(
                    f"input {name}: its partitions have different types of column "
                    f"{column['name']}: {kind} and {column['type']}; rebuild the dataset"
                )
    return _parse_struct(tuple(types.items()))


@lru_cache(256)
def _parse_struct(columns: tuple[tuple[str, str], ...]) -> StructType:
    ddl = ", ".join(f"{quote_name(name)} {kind}" for name, kind in columns)
    return cast("StructType", StructType.fromDDL(ddl))


def read_files(spark: SparkSession, schema: StructType, scan: Scan) -> DataFrame:
    """Read the files of a scan, without its limits."""
    if not scan.keys:
        return spark.createDataFrame([], schema)
    paths = [path for key in scan.keys if (path := scan.store.jvm_path(key)) is not None]
    if len(paths) == len(scan.keys):
        return spark.read.schema(schema).parquet(*paths)
    return read_objects(spark, schema, scan)


def _filter_rows(frame: DataFrame, conditions: list[Column]) -> DataFrame:
    return frame.where(reduce(Column.__and__, conditions)) if conditions else frame


def _list_limits(schema: StructType, scope: Scope | None) -> list[Limit]:
    if scope is None or _BLOCK not in schema.names:
        return []
    limits = ((">=", scope.start), ("<=", scope.end), (">", scope.after), ("<=", scope.cursor))
    return [Limit(_BLOCK, operator, value) for operator, value in limits if value is not None]


def _list_time_limits(
    task_input: TaskInput, schema: StructType, time_range: tuple[datetime, datetime]
) -> list[Limit]:
    """The rows of a day or hour. Seconds are counted from 1970."""
    column = task_input.time_column or ""
    if column not in schema.names:
        raise BadTask(
            f"input {task_input.name}, time: there is no column {column}; name one of the input"
        )
    kind = schema[column].dataType
    start, end = (_convert_bound(time, kind) for time in time_range)
    if isinstance(kind, DateType) and start == end:
        raise BadTask(f"input {task_input.name}, time: {column} is a date; use `partition_by: day`")
    return [Limit(column, ">=", start), Limit(column, "<", end)]


def _convert_bound(time: datetime, kind: DataType) -> Any:
    if isinstance(kind, IntegralType):
        return int(time.timestamp())
    if isinstance(kind, DateType):
        return time.date()
    return time.replace(tzinfo=None) if isinstance(kind, TimestampNTZType) else time


_COMPARE = {">": gt, ">=": ge, "<": lt, "<=": le}


def _make_condition(limit: Limit) -> Column:
    return _COMPARE[limit.operator](F.col(quote_name(limit.column)), F.lit(limit.value))


def where_columns(task_input: TaskInput, schema: StructType) -> list[Column]:
    """The `where` of an edge: AND over its columns; a list means IN."""
    conditions: list[Column] = []
    for name, value in (task_input.where or {}).items():
        if name not in schema.names:
            raise BadTask(
                f"input {task_input.name}, where: there is no column {name}; name one of the input"
            )
        kind = schema[name].dataType
        items = cast("list[Any]", value if isinstance(value, list) else [value])
        conditions.append(F.col(quote_name(name)).isin([literal(item, kind) for item in items]))
    return conditions


def literal(value: Any, kind: DataType) -> Column:
    """A literal of the column's type; 0x… becomes bytes, as hashes and addresses are stored."""
    if isinstance(kind, BinaryType) and isinstance(value, str) and value.startswith("0x"):
        try:
            return F.lit(bytearray.fromhex(value[2:]))
        except ValueError as error:
            raise BadTask(
                f"where: {value} is not hexadecimal; write 0x and an even number of digits"
            ) from error
    return F.lit(value)
