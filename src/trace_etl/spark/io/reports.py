"""What a finished task tells the Dispatcher, in the shapes of the completion call."""

import re
from collections.abc import Mapping, Sequence

from trace_etl.api.task.events import Event, Invalidation
from trace_etl.api.task.lifecycle import Output, Published, TaskResult
from trace_etl.api.task.payload import Scope, TaskOutput, TaskPayload
from trace_etl.spark.io.parquet import WrittenFile

_WHOLE = "all"  # the partition of an output that is not cut into ranges


def file_name(output: str, scope: Scope | None) -> str:
    """`logs_0_499.parquet`: the range stays readable in the name."""
    if scope is None:
        return f"{output}.parquet"
    span = blocks(scope)
    if span is not None:
        return f"{output}_{span[0]}_{span[1]}.parquet"
    part = scope.partition_key or _WHOLE
    return f"{output}_{re.sub(r'[^A-Za-z0-9.-]', '_', part)}.parquet"


def blocks(scope: Scope) -> tuple[int, int] | None:
    """The blocks that a scope is about: its range, or what is new up to its cursor."""
    if scope.start is not None and scope.end is not None:
        return scope.start, scope.end
    if scope.cursor is not None:
        return (0 if scope.after is None else scope.after + 1), scope.cursor
    return None


def result(
    task: TaskPayload,
    written: Mapping[str, WrittenFile],
    invalidations: Sequence[Invalidation] = (),
) -> TaskResult:
    """Every output with its counts, its prefix to point at, and the event it causes."""
    scope = task.scope or Scope()
    return TaskResult(
        outputs=[_output(output, scope, written[output.name]) for output in task.outputs],
        datasets_published=[_published(output, scope) for output in task.outputs],
        events=[_event(output, scope) for output in task.outputs],
        invalidations=list(invalidations),
    )


def appended(task: TaskPayload, output: TaskOutput, location: str, rows: int) -> TaskResult:
    """An output whose rows went to a table: nothing to point at, an event all the same."""
    scope = task.scope or Scope()
    told = Output(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        location=location,
        cursor=scope.cursor,
        partition_key=_partition_key(scope),
        row_count=rows,
    )
    return TaskResult(outputs=[told], events=[_event(output, scope)])


def buffered(task: TaskPayload, output: TaskOutput, rows: int, size: int) -> TaskResult:
    """An output whose rows wait for the sink: the event is the sink's to cause."""
    scope = task.scope or Scope()
    told = Output(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        location=output.storage_ref.ref().url,
        cursor=scope.cursor,
        partition_key=_partition_key(scope),
        row_count=rows,
        byte_count=size,
    )
    return TaskResult(outputs=[told])


def _output(output: TaskOutput, scope: Scope, written: WrittenFile) -> Output:
    return Output(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        location=output.storage_ref.ref().url,
        cursor=scope.cursor,
        partition_key=_partition_key(scope),
        row_count=written.rows,
        byte_count=written.bytes,
    )


def _published(output: TaskOutput, scope: Scope) -> Published:
    span = blocks(scope)
    return Published(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        storage_ref=output.storage_ref,
        range_start=span[0] if span else None,
        range_end=span[1] if span else None,
    )


def _event(output: TaskOutput, scope: Scope) -> Event:
    span = blocks(scope)
    return Event(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        partition_key=_partition_key(scope),
        start=span[0] if span else None,
        end=span[1] if span else None,
    )


def _partition_key(scope: Scope) -> str:
    """What a cursor's task writes is a partition too: the blocks since the last one."""
    span = blocks(scope)
    return scope.partition_key or (f"{span[0]}-{span[1]}" if span else _WHOLE)
