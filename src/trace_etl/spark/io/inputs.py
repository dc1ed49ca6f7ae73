"""Load inputs as DataFrames: the files of the pinned partitions, restricted to the task's scope."""

from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StructType

from trace_etl.api.task.lifecycle import SuccessMarker
from trace_etl.api.task.payload import InputPartition, Scope, TaskInput
from trace_etl.model.errors import OutputNotReady
from trace_etl.objects.errors import InvalidKey, StorageError
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.errors import BadTask, InputMissing
from trace_etl.spark.io.reports import block_range
from trace_etl.spark.io.scan import Limit, Scan
from trace_etl.spark.io.storage import file_key

_BLOCK = "block_number"
# Below this size one core finishes before a shuffle has begun, so every stage runs as one task.
_SMALL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Input:
    """One input, ready to use."""

    name: str
    frame: DataFrame
    is_small: bool
    scan: Scan | None = None
    """The same rows for executors that read files themselves; None where only Spark can."""


def load(spark: SparkSession, given: TaskInput, scope: Scope | None, store: ObjectStore) -> Input:
    """Load the rows of an input that are in the task's scope. Raises InputMissing or BadTask."""
    if not given.partitions:
        raise InputMissing(f"input {given.name}: no partition is committed yet")
    found = [partition for partition in given.partitions if _overlaps(partition, scope)]
    wanted = sorted(found, key=lambda part: (part.start is None, part.start or 0))
    markers = [_read_marker(given.name, part, store) for part in wanted or given.partitions[:1]]
    schema = _schema(given.name, markers)
    keys = [
        file_key(store, part.storage_ref, file.name)
        for part, marker in zip(wanted, markers, strict=False)
        for file in marker.files
    ]
    is_small = sum(marker.bytes for marker in markers) <= _SMALL_BYTES
    limits = [] if _are_inside(wanted, scope) else _limits(schema, scope)
    conditions = [*map(_condition, limits), *where_columns(given, schema)]
    frame = _filtered(_read(spark, schema, [store.uri(key) for key in keys]), conditions)
    scan = Scan(store, tuple(keys), to_arrow_schema(schema, timezone="UTC"), tuple(limits))
    # The `where` of an edge compares by the rules of SQL, which Arrow does not have.
    can_scan = bool(keys) and not given.where and all(key.endswith(".parquet") for key in keys)
    return Input(
        given.name,
        frame.coalesce(1) if is_small else frame,
        is_small,
        scan if can_scan and _in_order(wanted) else None,
    )


def _in_order(partitions: list[InputPartition]) -> bool:
    """Whether the files follow each other by block."""
    starts = [part.start for part in partitions]
    return len(starts) == 1 or (None not in starts and starts == sorted(cast("list[int]", starts)))


def _are_inside(partitions: list[InputPartition], scope: Scope | None) -> bool:
    """Whether the scope covers the partitions whole, so that no row needs a check."""
    span = block_range(scope) if scope else None
    return span is not None and all(
        part.start is not None
        and part.end is not None
        and span[0] <= part.start
        and part.end <= span[1]
        for part in partitions
    )


def _overlaps(partition: InputPartition, scope: Scope | None) -> bool:
    span = block_range(scope) if scope else None
    if span is None or partition.start is None or partition.end is None:
        return True
    return partition.start <= span[1] and partition.end >= span[0]


def _read_marker(name: str, partition: InputPartition, store: ObjectStore) -> SuccessMarker:
    try:
        return read_marker(store, partition.storage_ref.ref())
    except InvalidKey as error:
        raise BadTask(f"input {name}: {error}") from error
    except (OutputNotReady, StorageError) as error:
        raise InputMissing(
            f"input {name}, partition {partition.partition_key}: cannot read the marker: {error}"
        ) from error


def _schema(name: str, markers: list[SuccessMarker]) -> StructType:
    shapes = {
        tuple((column["name"], column["type"]) for column in marker.schema_) for marker in markers
    }
    if len(shapes) > 1:
        raise BadTask(f"input {name}: its partitions do not have the same columns")
    return _struct(shapes.pop())


@lru_cache(256)
def _struct(columns: tuple[tuple[str, str], ...]) -> StructType:
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns)
    return cast("StructType", StructType.fromDDL(ddl))


def _read(spark: SparkSession, schema: StructType, uris: list[str]) -> DataFrame:
    if not uris:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*uris)


def _filtered(frame: DataFrame, conditions: list[Column]) -> DataFrame:
    return frame.where(reduce(Column.__and__, conditions)) if conditions else frame


def _limits(schema: StructType, scope: Scope | None) -> list[Limit]:
    if scope is None or _BLOCK not in schema.names:
        return []
    limits = ((">=", scope.start), ("<=", scope.end), (">", scope.after), ("<=", scope.cursor))
    return [Limit(_BLOCK, operator, value) for operator, value in limits if value is not None]


def _condition(limit: Limit) -> Column:
    column = F.col(limit.column)
    if limit.operator == ">":
        return column > limit.value
    return column >= limit.value if limit.operator == ">=" else column <= limit.value


def where_columns(given: TaskInput, schema: StructType) -> list[Column]:
    """The `where` of an edge: AND over its columns; a list means IN."""
    conditions: list[Column] = []
    for name, value in (given.where or {}).items():
        if name not in schema.names:
            raise BadTask(f"input {given.name}, where: there is no column {name}")
        kind = schema[name].dataType
        items = cast("list[Any]", value if isinstance(value, list) else [value])
        conditions.append(F.col(f"`{name}`").isin([literal(item, kind) for item in items]))
    return conditions


def literal(value: Any, kind: DataType) -> Column:
    """A literal of the column's type; 0x… becomes bytes, as hashes and addresses are stored."""
    if isinstance(kind, BinaryType) and isinstance(value, str) and value.startswith("0x"):
        try:
            return F.lit(bytearray.fromhex(value[2:]))
        except ValueError as error:
            raise BadTask(f"where: {value} is not hexadecimal") from error
    return F.lit(value)
