"""Delete blocks from a hot table after a cold dataset has committed them."""

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import InputPartition
from trace_etl.dag.operator_configs import TrimConfig
from trace_etl.data import connection, hot_tables
from trace_etl.model.storage import hot_table
from trace_etl.policy.ranges import split_range
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask


def run(context: OperatorContext, config: TrimConfig) -> TaskResult:
    """Delete the blocks of the task in batches, unless the cold input lacks one of them.

    The claim pinned the cold partitions, so they are committed before the delete.
    """
    cold, hot = context.task.inputs
    scope = context.task.scope
    if scope is None or scope.start is None or scope.end is None:
        return TaskResult()  # the hot table woke this task, not a cold partition
    if not covers(cold.partitions, scope.start, scope.end):
        return TaskResult()
    dsn = context.settings.data_dsn
    if dsn is None:
        raise BadTask("hot_trim: Postgres data is not configured; set TRACE_DATA_DSN")
    table = hot_table(hot.dataset_uuid, hot.dataset_version)
    with connection.connect(dsn) as conn:
        for start, end in split_range(scope.start, scope.end, config.blocks_per_delete):
            context.check()
            with connection.transaction(conn):
                hot_tables.trim_range(conn, table, start, end)
    return TaskResult()


def covers(partitions: list[InputPartition], start: int, end: int) -> bool:
    """Whether the partitions contain every block of the range."""
    spans = sorted(
        (p.start, p.end) for p in partitions if p.start is not None and p.end is not None
    )
    next_block = start
    for first, last in spans:
        if first > next_block:
            return False
        next_block = max(next_block, last + 1)
    return next_block > end
