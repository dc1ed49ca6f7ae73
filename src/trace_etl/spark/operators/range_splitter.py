"""Cuts a range of blocks into partitions; its only product is events."""

from trace_etl.api.task.events import Event
from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.operators import SplitConfig
from trace_etl.policy.ranges import split
from trace_etl.spark.context import OperatorContext


def run(context: OperatorContext, config: SplitConfig) -> TaskResult:
    """One event per partition, for each output. Raises BadTask without a range."""
    cuts = split(*context.block_range(), config.size)
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
            for start, end in cuts
        ]
    )
