"""Split a range of blocks into partitions. It emits events and writes no rows."""

from trace_etl.api.task.events import Event
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.operators import SplitConfig
from trace_etl.policy.ranges import split_range
from trace_etl.spark.context import OperatorContext


def run(context: OperatorContext, config: SplitConfig) -> TaskResult:
    """Return one event per partition and output. Raises BadTask if the task has no range."""
    ranges = split_range(*context.block_range(), config.size)
    return TaskResult(
        events=[
            Event(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                partition_key=f"{start}-{end}",
                start=start,
                end=end,
            )
            for output in context.task.outputs
            for start, end in ranges
        ]
    )
