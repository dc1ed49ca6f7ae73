"""What a finished task tells the Dispatcher, in the shapes of the completion call."""

import re
from collections.abc import Mapping, Sequence

from trace_etl.pipeline.parquet import Written
from trace_etl.wire.task import (
    Event,
    Invalidation,
    Output,
    Published,
    Scope,
    TaskOutput,
    TaskPayload,
    TaskResult,
)

_WHOLE = "all"  # the partition of an output that is not cut into ranges


def file_name(output: str, scope: Scope | None) -> str:
    """`logs_0_499.parquet`: the range stays readable in the name."""
    if scope is None:
        return f"{output}.parquet"
    if scope.start is not None and scope.end is not None:
        return f"{output}_{scope.start}_{scope.end}.parquet"
    part = scope.cursor if scope.cursor is not None else scope.partition_key or _WHOLE
    return f"{output}_{re.sub(r'[^A-Za-z0-9.-]', '_', str(part))}.parquet"


def result(
    task: TaskPayload, written: Mapping[str, Written], invalidations: Sequence[Invalidation] = ()
) -> TaskResult:
    """Every output with its counts, its prefix to point at, and the event it causes."""
    scope = task.scope or Scope()
    return TaskResult(
        outputs=[_output(output, scope, written[output.name]) for output in task.outputs],
        datasets_published=[_published(output, scope) for output in task.outputs],
        events=[_event(output, scope) for output in task.outputs],
        invalidations=list(invalidations),
    )


def _output(output: TaskOutput, scope: Scope, written: Written) -> Output:
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
    return Published(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        storage_ref=output.storage_ref,
        range_start=scope.start,
        range_end=scope.end,
    )


def _event(output: TaskOutput, scope: Scope) -> Event:
    return Event(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        cursor=scope.cursor,
        partition_key=_partition_key(scope),
        start=scope.start,
        end=scope.end,
    )


def _partition_key(scope: Scope) -> str | None:
    return None if scope.cursor is not None else scope.partition_key or _WHOLE
