"""Find the days or hours that the rows of an input partition belong to."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.api.task.lifecycle import MappedPartition, TaskResult
from trace_etl.api.task.payload import TIME_FORMATS, TIME_SECONDS, TaskInput, TaskPayload
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.inputs import open_partition
from trace_etl.spark.io.scan import Scan

_MAX_KEYS = 10_000


def map_partitions(task: TaskPayload, store: ObjectStore) -> TaskResult:
    """Find the days or hours of the rows in a task's scope, per partition. Reads only the time columns."""
    unit = task.partition_by or "day"
    return TaskResult(
        mapped_partitions=[
            MappedPartition(
                dataset_version=item.dataset_version,
                partition_key=partition.partition_key,
                time_keys=_list_keys(item, open_partition(item, partition, store), unit),
            )
            for item in task.inputs
            if item.time_column is not None
            for partition in item.partitions
        ]
    )


def _list_keys(item: TaskInput, scan: Scan, unit: str) -> list[str]:
    column = item.time_column or ""
    if column not in scan.schema.names:
        raise BadTask(
            f"input {item.name}, time: there is no column {column}; name one of the input"
        )
    field = scan.schema.field(column)
    kind = _choose_second_type(item, field.type)
    found: set[int] = set()
    narrow = Scan(scan.store, scan.keys, pa.schema([field]))
    for batch in narrow.batches():
        seconds = _convert_to_seconds(batch.column(0), kind)
        buckets = pc.unique(pc.floor(pc.divide(pc.cast(seconds, pa.float64()), TIME_SECONDS[unit])))
        found.update(int(value) for value in buckets.to_pylist() if value is not None)
        if len(found) > _MAX_KEYS:
            raise BadTask(
                f"input {item.name}, time: the rows of one partition belong to more than {_MAX_KEYS} "
                f"{unit}s; check the column {column}"
            )
    return [_format_key(bucket * TIME_SECONDS[unit], unit, item) for bucket in sorted(found)]


def _choose_second_type(item: TaskInput, kind: Any) -> str:
    if pa.types.is_integer(kind):
        return "seconds"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_date(kind):
        return "date"
    raise BadTask(
        f"input {item.name}, time: {item.time_column} has type {kind}; use a timestamp, a date, or whole "
        "seconds since 1970"
    )


def _convert_to_seconds(values: Any, kind: str) -> Any:
    if kind == "seconds":
        return pc.cast(values, pa.int64())
    micros = pc.cast(pc.cast(values, pa.timestamp("us")), pa.int64())
    return pc.floor(pc.divide(pc.cast(micros, pa.float64()), 1_000_000))


def _format_key(second: int, unit: str, item: TaskInput) -> str:
    try:
        return datetime.fromtimestamp(second, UTC).strftime(TIME_FORMATS[unit])
    except (ValueError, OverflowError) as error:
        raise BadTask(
            f"input {item.name}, time: {second} is not a time in seconds since 1970; check the column "
            f"{item.time_column}"
        ) from error
