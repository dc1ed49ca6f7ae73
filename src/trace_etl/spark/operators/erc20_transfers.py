"""Extract ERC-20 transfers from logs: token, sender, recipient and value."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from trace_etl.dag.abi import parse_event
from trace_etl.dag.operator_configs import TransfersConfig
from trace_etl.spark.abi.events import Decoder, LogDecoder
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.io.writers import Split
from trace_etl.spark.operators.decode_logs import decode_logs, select_candidates

_TRANSFER = parse_event("Transfer(address indexed from, address indexed to, uint256 value)")
_NAMES = {"address": "token", "from": "from_address", "to": "to_address"}
_UNDECODED = "_undecoded"


@dataclass(frozen=True)
class _Transfers:
    """Decodes the logs, drops those that are no ERC-20 transfer, and renames the columns.

    An ERC-721 transfer shares topic 0 but has a fourth topic, so it does not decode.
    """

    decoder: LogDecoder
    output: str
    schema: Any

    def __call__(self, logs: Any) -> Iterator[tuple[str, Any]]:
        for table, batch in self.decoder(logs):
            if table == self.output:
                yield table, pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


def run(context: OperatorContext, config: TransfersConfig) -> Split:
    """Return one row per transfer. Raises BadTask."""
    [output] = context.outputs
    decoders = [Decoder(output, _TRANSFER)]
    logs = select_candidates(context.inputs[0], decoders, config.tokens)
    split = decode_logs(logs, decoders, _UNDECODED)
    assert isinstance(split.work, LogDecoder)
    fields = [(_NAMES.get(field.name, field.name), field.type) for field in split.tables[output]]
    schema = pa.schema(fields)
    return replace(split, work=_Transfers(split.work, output, schema), tables={output: schema})
