"""How far a chain has come."""

from trace_etl.spark.evm.answers import Call
from trace_etl.spark.evm.fetch import RangeReader, Source


def head_block(urls: tuple[str, ...]) -> int:
    """The number of the newest block. Raises RpcUnreachable or RpcRefused."""
    with RangeReader(Source(urls), ("blocks",)) as reader:
        return int(reader.value(Call("eth_blockNumber", ())), 16)
