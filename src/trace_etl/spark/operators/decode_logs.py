"""Event logs by their ABI into typed columns; what does not decode is kept, with the reason."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from trace_etl.dag.operator_configs import UNDECODED, DecodeConfig
from trace_etl.spark.abi.events import IDENTITY, TOPICS, Decoder, LogDecoder
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.io.writers import Split

_NEEDED = (*TOPICS, "data")


def run(context: OperatorContext, config: DecodeConfig) -> Split:
    """One output per event, and one for what does not decode. Raises BadTask."""
    decoders = [Decoder(output, event) for output, event in config.parsed().items()]
    undecoded = UNDECODED if UNDECODED in context.outputs else None
    return decoded(relevant(context.inputs[0], decoders, config.addresses), decoders, undecoded)


def decoded(logs: Input, decoders: Sequence[Decoder], undecoded: str | None) -> Split:
    """The logs' rows by event."""
    fields: list[Any] = list(to_arrow_schema(logs.frame.schema, timezone="UTC"))
    columns = [(field.name, field.type) for field in fields]
    identity = [column for column in columns if column[0] in IDENTITY]
    work = LogDecoder(decoders, identity, columns, undecoded)
    return Split(logs.frame, work, work.tables(), logs.scan)


def relevant(logs: Input, decoders: Sequence[Decoder], addresses: Sequence[str]) -> Input:
    """Only logs that one of the events could be of; Parquet skips the others. Raises BadTask."""
    missing = [name for name in (*_NEEDED, "address") if name not in logs.frame.columns]
    if missing:
        raise BadTask(f"the input has no column {missing[0]}: it does not hold logs")
    if addresses:
        logs = _only(logs, "address", [bytes.fromhex(one[2:]) for one in addresses])
    topics = [one.topic0 for one in decoders]
    if any(topic is None for topic in topics):
        return logs
    # The decoder itself looks at topic 0: a scan need not do so before.
    return replace(_only(logs, "topic0", [one for one in topics if one]), scan=logs.scan)


def _only(logs: Input, column: str, wanted: Sequence[bytes]) -> Input:
    is_wanted = F.col(column).isin([F.lit(bytearray(one)) for one in wanted])
    scan = logs.scan.where(column, wanted) if logs.scan else None
    return replace(logs, frame=logs.frame.where(is_wanted), scan=scan)
