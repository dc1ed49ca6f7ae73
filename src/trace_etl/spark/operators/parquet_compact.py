"""Compact many small files, or the final blocks of a hot table, into one file per partition."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.api.task.payload import Scope
from trace_etl.dag.operator_configs import CompactConfig
from trace_etl.data import connection, hot_tables
from trace_etl.model.storage import hot_table
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask, NotFinal
from trace_etl.spark.evm.tip import head_block
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.io.writers import Frame, Split


@dataclass(frozen=True)
class _CopyRows:
    """Sends every row to the one output."""

    output: str

    def __call__(self, batch: Any) -> Iterator[tuple[str, Any]]:
        yield self.output, batch


def run(context: OperatorContext, config: CompactConfig) -> Frame | Split | TaskResult:
    """Return every row of the range, unchanged. Raises NotFinal while the chain may change it."""
    if config.size is not None and not _is_aligned(context.task.scope, config.size):
        return TaskResult()
    if config.finality_depth_blocks is not None:
        _check_finality(context, config.rpc, config.finality_depth_blocks)
    _check_not_trimmed(context)
    rows, [output] = context.load(context.task.inputs[-1]), context.outputs
    if rows.scan is None:
        return Frame(output, rows.frame, is_large=not rows.is_small, is_archive=True)
    tables = {output: rows.scan.schema}
    return Split(rows.frame, _CopyRows(output), tables, rows.scan, is_archive=True)


def _check_not_trimmed(context: OperatorContext) -> None:
    """Raise BadTask if `hot_trim` deleted blocks of the range: the output would lose their rows."""
    task_input, dsn = context.task.inputs[-1], context.settings.data_dsn
    scope = context.task.scope
    if task_input.partitions or dsn is None or scope is None:
        return
    if scope.start is None or scope.end is None:
        return
    with connection.connect(dsn) as conn:
        table = hot_table(task_input.dataset_uuid, task_input.dataset_version)
        if hot_tables.is_trimmed(conn, table, scope.start, scope.end):
            raise BadTask(
                f"parquet_compact: blocks of {scope.start}-{scope.end} were trimmed from "
                f"{task_input.name}; the committed partition is unchanged. Ingest the range from the "
                "chain instead"
            )


def _is_aligned(scope: Scope | None, size: int) -> bool:
    """Whether the task's range is a range to compact, not a smaller partition of an input."""
    if scope is None or scope.start is None or scope.end is None:
        return False
    return scope.end - scope.start + 1 == size and scope.start % size == 0


def _check_finality(context: OperatorContext, pool: str, depth: int) -> None:
    _, end = context.block_range()
    head = head_block(context.rpc_urls(pool))
    if end + depth > head:
        raise NotFinal(f"block {end} is not yet {depth} blocks behind the head, block {head}")


def output_schemas(
    outputs: Sequence[str], inputs: Sequence[Input], config: object
) -> dict[str, StructType]:
    """Return the columns of the compacted input."""
    return {outputs[0]: inputs[-1].frame.schema}
