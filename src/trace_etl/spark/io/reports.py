"""Build the result that a finished task reports to the Dispatcher."""

import re
from collections.abc import Mapping, Sequence

from trace_etl.api.task.events import Event, Invalidation
from trace_etl.api.task.lifecycle import Output, Published, TaskResult
from trace_etl.api.task.payload import Scope, TaskOutput, TaskPayload
from trace_etl.spark.io.parquet import WrittenFile


def file_name(output: str, scope: Scope | None) -> str:
    """Return the name of an output's file, for example `logs_0_499.parquet`."""
    if scope is None:
        return f"{output}.parquet"
    span = scope.blocks
    if span is not None:
        return f"{output}_{span.start}_{span.end}.parquet"
    return f"{output}_{re.sub(r'[^A-Za-z0-9.-]', '_', scope.output_key)}.parquet"


def report_files(
    task: TaskPayload,
    written: Mapping[str, WrittenFile],
    invalidations: Sequence[Invalidation] = (),
) -> TaskResult:
    """Report every output's counts, the prefix to commit, and its event."""
    scope = task.scope or Scope()
    return TaskResult(
        outputs=[
            _make_output(
                output, scope, rows=written[output.name].rows, size=written[output.name].bytes
            )
            for output in task.outputs
        ],
        datasets_published=[_make_publication(output, scope) for output in task.outputs],
        events=[_make_event(output, scope) for output in task.outputs],
        invalidations=list(invalidations),
    )


def report_appended(task: TaskPayload, output: TaskOutput, location: str, rows: int) -> TaskResult:
    """Report rows that were written to a table: there is no prefix to commit."""
    scope = task.scope or Scope()
    appended = _make_output(output, scope, rows=rows).model_copy(update={"location": location})
    return TaskResult(outputs=[appended], events=[_make_event(output, scope)])


def report_buffered(task: TaskPayload, output: TaskOutput, rows: int, size: int) -> TaskResult:
    """Report rows that the sink will write. The event follows when the sink has written them."""
    return TaskResult(outputs=[_make_output(output, task.scope or Scope(), rows=rows, size=size)])


def _make_output(output: TaskOutput, scope: Scope, *, rows: int, size: int | None = None) -> Output:
    return Output(
        output_index=output.output_index,
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        location=output.storage_ref.ref().url,
        cursor=scope.cursor,
        partition_key=scope.output_key,
        row_count=rows,
        byte_count=size,
    )


def _make_publication(output: TaskOutput, scope: Scope) -> Published:
    return Published(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        storage_ref=output.storage_ref,
        range_start=scope.blocks.start if scope.blocks else None,
        range_end=scope.blocks.end if scope.blocks else None,
    )


def _make_event(output: TaskOutput, scope: Scope) -> Event:
    return Event(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        partition_key=scope.output_key,
        start=scope.blocks.start if scope.blocks else None,
        end=scope.blocks.end if scope.blocks else None,
    )
