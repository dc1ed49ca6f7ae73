"""Decode event logs into typed columns. Logs that do not decode are kept, with the reason."""

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
    """Return one output per event, and optionally one for logs that fail. Raises BadTask."""
    decoders = [Decoder(output, event) for output, event in config.parse_events().items()]
    undecoded = UNDECODED if UNDECODED in context.outputs else None
    logs = select_candidates(context.inputs[0], decoders, config.addresses)
    return decode_logs(logs, decoders, undecoded)


def decode_logs(logs: Input, decoders: Sequence[Decoder], undecoded: str | None) -> Split:
    """Return the decoded rows, split by event."""
    fields: list[Any] = list(to_arrow_schema(logs.frame.schema, timezone="UTC"))
    columns = [(field.name, field.type) for field in fields]
    identity = [column for column in columns if column[0] in IDENTITY]
    work = LogDecoder(decoders, identity, columns, undecoded)
    return Split(logs.frame, work, work.tables(), logs.scan)


def select_candidates(logs: Input, decoders: Sequence[Decoder], addresses: Sequence[str]) -> Input:
    """Keep logs that can be one of the events. The filter is pushed into Parquet. Raises BadTask."""
    missing = [name for name in (*_NEEDED, "address") if name not in logs.frame.columns]
    if missing:
        raise BadTask(f"the input has no column {missing[0]}; use a dataset of logs as input")
    if addresses:
        logs = _filter_values(
            logs, "address", [bytes.fromhex(address[2:]) for address in addresses]
        )
    topics = [decoder.topic0 for decoder in decoders]
    if any(topic is None for topic in topics):
        return logs
    # The scan stays unfiltered by topic 0 because the decoder compares topic 0 itself.
    filtered = _filter_values(logs, "topic0", [topic for topic in topics if topic])
    return replace(filtered, scan=logs.scan)


def _filter_values(logs: Input, column: str, values: Sequence[bytes]) -> Input:
    is_wanted = F.col(column).isin([F.lit(bytearray(value)) for value in values])
    scan = logs.scan.where(column, values) if logs.scan else None
    return replace(logs, frame=logs.frame.where(is_wanted), scan=scan)
