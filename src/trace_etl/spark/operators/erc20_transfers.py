"""ERC-20 transfers out of logs: token, from, to and value, nothing that only looks like one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from trace_etl.dag.abi import parse_event
from trace_etl.dag.operator_configs import TransfersConfig
from trace_etl.spark.abi.events import Decoder, LogDecoder
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.io.writers import Split
from trace_etl.spark.operators.decode_logs import decoded, relevant

_TRANSFER = parse_event("Transfer(address indexed from, address indexed to, uint256 value)")
_NAMES = {"address": "token", "from": "from_address", "to": "to_address"}
_REST = "_rest"


@dataclass(frozen=True)
class _Transfers:
    """Decodes, drops what is no ERC-20 transfer (an NFT's has a fourth topic), and renames."""

    decoder: LogDecoder
    output: str
    schema: Any

    def __call__(self, logs: Any) -> Iterator[tuple[str, Any]]:
        for table, batch in self.decoder(logs):
            if table == self.output:
                yield table, pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


def run(context: OperatorContext, config: TransfersConfig) -> Split:
    """The transfers, one row each. Raises BadTask."""
    [output] = context.outputs
    decoders = [Decoder(output, _TRANSFER)]
    split = decoded(relevant(context.inputs[0], decoders, config.tokens), decoders, _REST)
    assert isinstance(split.work, LogDecoder)
    fields = [(_NAMES.get(field.name, field.name), field.type) for field in split.tables[output]]
    schema = pa.schema(fields)
    return replace(split, work=_Transfers(split.work, output, schema), tables={output: schema})
