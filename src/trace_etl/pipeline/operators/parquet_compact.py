"""Many small files, or a hot table's final blocks, to one well-packed file a partition."""

from trace_etl.pipeline.context import OperatorContext
from trace_etl.pipeline.errors import NotFinal
from trace_etl.pipeline.evm.head import head_block
from trace_etl.pipeline.writer import Frame
from trace_etl.plan.operator_configs import CompactConfig


def run(context: OperatorContext, config: CompactConfig) -> Frame:
    """Every row of the range, as it is. Raises NotFinal while the chain may still change it."""
    if config.finality_depth_blocks is not None:
        _check_finality(context, config.rpc, config.finality_depth_blocks)
    [given] = context.inputs
    return Frame(context.outputs[0], given.frame, is_large=not given.is_small, is_archive=True)


def _check_finality(context: OperatorContext, pool: str, depth: int) -> None:
    _, end = context.block_range()
    head = head_block(context.rpc_urls(pool))
    if end + depth > head:
        raise NotFinal(f"block {end} is not yet {depth} blocks behind the head, block {head}")
