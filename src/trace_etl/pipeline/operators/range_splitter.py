"""Cuts a range of blocks into partitions; its only product is events."""

from trace_etl.pipeline.errors import BadTask
from trace_etl.plan.operators import SplitConfig
from trace_etl.plan.ranges import split
from trace_etl.wire.task import Event, TaskPayload, TaskResult


def run(task: TaskPayload, config: SplitConfig) -> TaskResult:
    """One event per partition, for each output. Raises BadTask without a range."""
    scope = task.scope
    if scope is None or scope.start is None or scope.end is None:
        raise BadTask("range_splitter: the task has no block range")
    cuts = split(scope.start, scope.end, config.size)
    return TaskResult(
        events=[
            Event(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                partition_key=f"{start}-{end}",
                start=start,
                end=end,
            )
            for output in task.outputs
            for start, end in cuts
        ]
    )
