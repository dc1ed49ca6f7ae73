"""Many small files, or a hot table's final blocks, to one well-packed file a partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trace_etl.pipeline.context import OperatorContext
from trace_etl.pipeline.errors import NotFinal
from trace_etl.pipeline.evm.head import head_block
from trace_etl.pipeline.writer import Frame, Split
from trace_etl.plan.operator_configs import CompactConfig


@dataclass(frozen=True)
class _All:
    """Every row to the one output."""

    output: str

    def __call__(self, batch: Any) -> Iterator[tuple[str, Any]]:
        yield self.output, batch


def run(context: OperatorContext, config: CompactConfig) -> Frame | Split:
    """Every row of the range, as it is. Raises NotFinal while the chain may still change it."""
    if config.finality_depth_blocks is not None:
        _check_finality(context, config.rpc, config.finality_depth_blocks)
    [given], [output] = context.inputs, context.outputs
    if given.scan is None:
        return Frame(output, given.frame, is_large=not given.is_small, is_archive=True)
    tables = {output: given.scan.schema}
    return Split(given.frame, _All(output), tables, given.scan, is_archive=True)


def _check_finality(context: OperatorContext, pool: str, depth: int) -> None:
    _, end = context.block_range()
    head = head_block(context.rpc_urls(pool))
    if end + depth > head:
        raise NotFinal(f"block {end} is not yet {depth} blocks behind the head, block {head}")
