"""Check the prices that transactions paid: they follow from their fees and the block's base fee."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import parse_integers, repeat_values
from trace_etl.spark.verify.transactions import read_types

_Array = Any  # pyarrow ships no types
_MAX_TYPE = 4  # other types belong to chains with rules of their own


def find_wrong_price(chunk: BlockChunk) -> tuple[int, str, str, str] | None:
    """Return the first wrong price as row, field, expected and received value."""
    types, prices = read_types(chunk.transactions), chunk.transactions.field("gasPrice")
    rows = np.flatnonzero((types >= 2) & (types <= _MAX_TYPE))
    if len(rows):
        expected, given = _compute_prices(chunk, rows)
        wrong = np.flatnonzero(expected != given)
        if len(wrong):
            at = int(wrong[0])
            return int(rows[at]), "gasPrice", hex(int(expected[at])), hex(int(given[at]))
    if chunk.receipts is None:
        return None
    paid = chunk.receipts.field("effectiveGasPrice")  # older nodes do not report it
    differs = np.asarray(pc.fill_null(pc.not_equal(prices, paid), False)) & (types <= _MAX_TYPE)
    for row in np.flatnonzero(differs):
        expected, given = prices[int(row)].as_py(), paid[int(row)].as_py()
        if int(expected, 16) != int(given, 16):
            return int(row), "effectiveGasPrice", expected, given
    return None


def _compute_prices(chunk: BlockChunk, rows: Any) -> tuple[Any, Any]:
    """The prices of transactions with dynamic fees, computed and as the node returned them."""
    place = pa.array(rows)
    base_fees = repeat_values(chunk.blocks.field("baseFeePerGas"), chunk.transaction_counts)
    names = ("maxFeePerGas", "maxPriorityFeePerGas", "gasPrice")
    columns = [base_fees, *(chunk.transactions.field(name) for name in names)]
    fees = _parse_fees(pa.concat_arrays([column.take(place) for column in columns]))
    base, most, tip, given = fees.reshape(4, -1)
    return np.minimum(most, base + np.minimum(tip, most)), given


def _parse_fees(texts: _Array) -> Any:
    try:
        numbers = np.asarray(parse_integers(texts))
        if np.all(numbers < 1 << 62):  # sums stay within 63 bits
            return numbers
    except OverflowError:
        pass
    return np.array([int(text, 16) for text in texts.to_pylist()], object)
