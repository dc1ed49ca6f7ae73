"""Build the tables of a chain, with cryo's column names and types that all readers share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.dag.chain.tables import CHAIN_TABLES, ColumnChoice, list_columns
from trace_etl.data.columns import declared_arrow_type
from trace_etl.spark.errors import ChainMismatch
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import (
    count_bytes,
    join_lists,
    list_lengths,
    parse_binary,
    parse_integers,
    parse_padded,
    parse_saturated,
    parse_wide_integers,
    repeat_constant,
    repeat_values,
    take_nth,
    write_decimals,
    write_json,
)
from trace_etl.spark.verify.transactions import KNOWN_TYPES, encode_transactions, read_types

_Array = Any  # pyarrow ships no types
_Parse = Callable[[_Array], _Array]
_PARSE_ERRORS = (ValueError, TypeError, OverflowError)
STANDARD: ColumnChoice = "standard"


def make_schema(table: str, choice: ColumnChoice = STANDARD) -> Any:
    """Return the Arrow schema of a table with these columns."""
    columns = list_columns(table, choice)
    return pa.schema([(column.name, declared_arrow_type(column.type)) for column in columns])


SCHEMAS: dict[str, Any] = {table: make_schema(table) for table in CHAIN_TABLES}
"""The schemas of the standard columns."""


def build_table(
    table: str, chunk: BlockChunk, chain_id: int, choice: ColumnChoice = STANDARD
) -> Any:
    """Build one table of a chunk. Raises ChainMismatch if a value does not fit its column."""
    schema = SCHEMAS[table] if choice == STANDARD else make_schema(table, choice)
    rows = _ROWS[table](chunk, chain_id)
    columns = [_build_column(table, name, rows) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Rows:
    """The rows of one table: its own fields, those of its receipts, and those of its blocks."""

    def __init__(
        self, chunk: BlockChunk, chain_id: int, fields: _Array, counts: Any, receipts: _Array = None
    ) -> None:
        self.chunk, self.chain_id, self.fields, self.receipts = chunk, chain_id, fields, receipts
        self._counts = counts
        self._shared: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self.fields)

    def own(self, name: str) -> _Array:
        return self.fields.field(name)

    def receipt(self, name: str) -> _Array:
        return self.receipts.field(name)

    def block(self, name: str) -> _Array:
        column = self.chunk.blocks.field(name)
        return column if self._counts is None else repeat_values(column, self._counts)

    def share(self, compute: Callable[["_Rows"], Any]) -> Any:
        """Compute what several columns need once."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        return self._shared[compute]

    def describe(self, row: int) -> str:
        number = int(self.block("number")[row].as_py(), 16)
        names = [field.name for field in self.fields.type]
        if self.receipts is not None:
            return f"transaction {self.own('hash')[row]} of block {number}"
        if "logIndex" in names:
            return f"log {self.own('logIndex')[row]} of block {number}"
        return f"row {row} of block {number}" if self._counts is not None else f"block {number}"


_Build = Callable[[_Rows], _Array]


class _Parsed:
    """A column that is parsed from texts of the node."""

    def __init__(self, read: Callable[[_Rows], _Array], parse: _Parse) -> None:
        self.read, self.parse = read, parse

    def __call__(self, rows: _Rows) -> _Array:
        return self.parse(self.read(rows))

    def find_wrong_row(self, rows: _Rows) -> int:
        """Return the first row whose text cannot be parsed."""
        texts = self.read(rows)
        for row in range(len(texts)):
            try:
                self.parse(texts[row : row + 1])
            except _PARSE_ERRORS:
                return row
        return 0


def _build_column(table: str, name: str, rows: _Rows) -> _Array:
    build = _BUILDERS[table][name]
    try:
        return build(rows)
    except _PARSE_ERRORS as error:
        where = table
        if isinstance(build, _Parsed) and len(rows):
            where = rows.describe(build.find_wrong_row(rows))
        source = f" at {rows.chunk.endpoint}" if rows.chunk.endpoint else ""
        raise ChainMismatch(
            f"{table}.{name}: {where}{source}: {error}; check the RPC endpoint"
        ) from error


def _read_own(name: str) -> Callable[[_Rows], _Array]:
    return lambda rows: rows.own(name)


def _read_receipt(name: str) -> Callable[[_Rows], _Array]:
    return lambda rows: rows.receipt(name)


def _read_block(name: str) -> Callable[[_Rows], _Array]:
    return lambda rows: rows.block(name)


_optional_binary = partial(parse_binary, optional=True)
_optional_integers = partial(parse_integers, optional=True)


def _parse_binary_field(name: str, *, optional: bool = False) -> _Parsed:
    return _Parsed(_read_own(name), _optional_binary if optional else parse_binary)


def _parse_integer_field(name: str, *, optional: bool = False) -> _Parsed:
    return _Parsed(_read_own(name), _optional_integers if optional else parse_integers)


def _parse_fee_field(name: str) -> _Parsed:
    """A fee in wei. Anyone may offer fees of 256 bits, which a long does not hold."""
    return _Parsed(_read_own(name), parse_saturated)


def _parse_digits_field(name: str) -> _Parsed:
    return _Parsed(_read_own(name), write_decimals)


def _parse_receipt_field(name: str, parse: _Parse = _optional_integers) -> _Parsed:
    return _Parsed(_read_receipt(name), parse)


def _repeat_chain_id(rows: _Rows) -> _Array:
    return repeat_constant(rows.chain_id, len(rows))


_BLOCK_HASH = _Parsed(_read_block("hash"), parse_binary)
_BLOCK_TIME = _Parsed(_read_block("timestamp"), parse_integers)


def _share_wide(name: str, position: int) -> _Build:
    """One of the three forms of a 256-bit number, which are parsed together."""
    parse = _WIDE.setdefault(name, lambda rows: parse_wide_integers(rows.own(name)))
    return lambda rows: rows.share(parse)[position]


_WIDE: dict[str, Callable[[_Rows], Any]] = {}


def _parse_total_difficulty(rows: _Rows) -> Any:
    texts = rows.own("totalDifficulty")  # newer nodes do not report it
    missing = texts.is_null()
    exact = parse_wide_integers(pc.fill_null(texts, "0x0"))
    return [pc.if_else(missing, None, column) for column in exact]


def _count_transactions(rows: _Rows) -> _Array:
    counts: Any = list_lengths(rows.own("transactions"))
    return pa.array(counts.astype(np.int64))


_HEADER: Mapping[str, _Build] = {
    "parent_hash": _parse_binary_field("parentHash"),
    "uncles_hash": _parse_binary_field("sha3Uncles"),
    "author": _parse_binary_field("miner"),
    "state_root": _parse_binary_field("stateRoot"),
    "transactions_root": _parse_binary_field("transactionsRoot"),
    "receipts_root": _parse_binary_field("receiptsRoot"),
    "logs_bloom": _parse_binary_field("logsBloom"),
    "gas_limit": _parse_integer_field("gasLimit"),
    "gas_used": _parse_integer_field("gasUsed"),
    "extra_data": _parse_binary_field("extraData"),
    "timestamp": _parse_integer_field("timestamp"),
    "difficulty": _parse_integer_field("difficulty"),
    "mix_hash": _parse_binary_field("mixHash", optional=True),
    "nonce": _parse_binary_field("nonce", optional=True),
    "chain_id": _repeat_chain_id,
}
_BLOCKS: Mapping[str, _Build] = {
    **_HEADER,
    "block_hash": _parse_binary_field("hash"),
    "block_number": _parse_integer_field("number"),
    "base_fee_per_gas": _parse_fee_field("baseFeePerGas"),
    "total_difficulty_binary": lambda rows: rows.share(_parse_total_difficulty)[0],
    "total_difficulty_string": lambda rows: rows.share(_parse_total_difficulty)[1],
    "total_difficulty_f64": lambda rows: rows.share(_parse_total_difficulty)[2],
    "size": _parse_integer_field("size", optional=True),
    "withdrawals_root": _parse_binary_field("withdrawalsRoot", optional=True),
    "blob_gas_used": _parse_integer_field("blobGasUsed", optional=True),
    "excess_blob_gas": _parse_integer_field("excessBlobGas", optional=True),
    "parent_beacon_block_root": _parse_binary_field("parentBeaconBlockRoot", optional=True),
    "requests_hash": _parse_binary_field("requestsHash", optional=True),
    "transaction_count": _count_transactions,
    "base_fee_per_gas_string": _parse_digits_field("baseFeePerGas"),
}


def _parse_input(rows: _Rows) -> Any:
    data = parse_binary(rows.own("input"))
    return data, *count_bytes(data)


def _count_nonzero(rows: _Rows) -> _Array:
    _, n_bytes, n_zero = rows.share(_parse_input)
    return pc.subtract(n_bytes, n_zero)


def _measure_transactions(rows: _Rows) -> _Array:
    """The sizes of signed transactions; null if the type is not known or a field is missing.

    The size of one does not depend on those that were read with it.
    """
    is_known = np.isin(read_types(rows.fields), KNOWN_TYPES)
    known = rows.fields.filter(pa.array(is_known))
    try:
        sizes = _measure(known)
    except ValueError:
        single = (known[n : n + 1] for n in range(len(known)))
        sizes = pa.concat_arrays([pa.array([], pa.int64()), *map(_measure_or_null, single)])
    return pc.replace_with_mask(pa.nulls(len(rows), pa.int64()), pa.array(is_known), sizes)


def _measure(transactions: _Array) -> _Array:
    return pc.binary_length(encode_transactions(transactions)).cast(pa.int64())


def _measure_or_null(transaction: _Array) -> _Array:
    try:
        return _measure(transaction)
    except ValueError:
        return pa.nulls(1, pa.int64())


_TRANSACTIONS: Mapping[str, _Build] = {
    "block_number": _parse_integer_field("blockNumber"),
    "transaction_index": _parse_integer_field("transactionIndex"),
    "transaction_hash": _parse_binary_field("hash"),
    "nonce": _parse_integer_field("nonce"),
    "from_address": _parse_binary_field("from"),
    "to_address": _parse_binary_field("to", optional=True),
    "value_binary": _share_wide("value", 0),
    "value_string": _share_wide("value", 1),
    "value_f64": _share_wide("value", 2),
    "input": lambda rows: rows.share(_parse_input)[0],
    "gas_limit": _parse_integer_field("gas"),
    "gas_used": _parse_receipt_field("gasUsed", parse_integers),
    "gas_price": _parse_fee_field("gasPrice"),
    "transaction_type": _Parsed(lambda rows: pc.fill_null(rows.own("type"), "0x0"), parse_integers),
    "max_priority_fee_per_gas": _parse_fee_field("maxPriorityFeePerGas"),
    "max_fee_per_gas": _parse_fee_field("maxFeePerGas"),
    # Before Byzantium a receipt has a state root instead of a status: the result is null.
    "success": lambda rows: pc.equal(rows.receipt("status"), "0x1"),
    "n_input_bytes": lambda rows: rows.share(_parse_input)[1],
    "n_input_zero_bytes": lambda rows: rows.share(_parse_input)[2],
    "n_input_nonzero_bytes": _count_nonzero,
    "chain_id": _repeat_chain_id,
    "block_hash": _BLOCK_HASH,
    "timestamp": _BLOCK_TIME,
    "n_rlp_bytes": _measure_transactions,
    "v": _parse_integer_field("v", optional=True),
    "r": _Parsed(_read_own("r"), parse_padded),
    "s": _Parsed(_read_own("s"), parse_padded),
    "y_parity": lambda rows: pc.equal(rows.own("yParity"), "0x1"),
    "access_list": lambda rows: write_json(rows.own("accessList")),
    "authorization_list": lambda rows: write_json(rows.own("authorizationList")),
    "blob_versioned_hashes": lambda rows: write_json(rows.own("blobVersionedHashes")),
    "max_fee_per_blob_gas": _parse_fee_field("maxFeePerBlobGas"),
    "blob_gas_used": _parse_receipt_field("blobGasUsed"),
    "blob_gas_price": _parse_receipt_field("blobGasPrice", parse_saturated),
    "contract_address": _parse_receipt_field("contractAddress", _optional_binary),
    "cumulative_gas_used": _parse_receipt_field("cumulativeGasUsed"),
    "effective_gas_price": _parse_receipt_field("effectiveGasPrice", parse_saturated),
    "root": _parse_receipt_field("root", _optional_binary),
    "gas_price_string": _parse_digits_field("gasPrice"),
    "max_priority_fee_per_gas_string": _parse_digits_field("maxPriorityFeePerGas"),
    "max_fee_per_gas_string": _parse_digits_field("maxFeePerGas"),
    "l1_fee": _parse_receipt_field("l1Fee", parse_saturated),
    "l1_gas_price": _parse_receipt_field("l1GasPrice", parse_saturated),
    "l1_gas_used": _parse_receipt_field("l1GasUsed"),
    "l1_fee_scalar": lambda rows: rows.receipt("l1FeeScalar"),
    "l1_blob_base_fee": _parse_receipt_field("l1BlobBaseFee", parse_saturated),
    "l1_base_fee_scalar": _parse_receipt_field("l1BaseFeeScalar"),
    "l1_blob_base_fee_scalar": _parse_receipt_field("l1BlobBaseFeeScalar"),
    "gas_used_for_l1": _parse_receipt_field("gasUsedForL1"),
    "l1_block_number": _parse_receipt_field("l1BlockNumber"),
    "source_hash": _parse_binary_field("sourceHash", optional=True),
    "mint_string": _parse_digits_field("mint"),
    "deposit_nonce": _parse_receipt_field("depositNonce"),
}


def _parse_data(rows: _Rows) -> Any:
    data = parse_binary(rows.own("data"))
    return data, count_bytes(data)[0]


def _read_topic(index: int) -> Callable[[_Rows], _Array]:
    return lambda rows: take_nth(rows.own("topics"), index)


_LOGS: Mapping[str, _Build] = {
    "block_number": _parse_integer_field("blockNumber"),
    "transaction_index": _parse_integer_field("transactionIndex"),
    "log_index": _parse_integer_field("logIndex"),
    "transaction_hash": _parse_binary_field("transactionHash"),
    "address": _parse_binary_field("address"),
    **{f"topic{n}": _Parsed(_read_topic(n), _optional_binary) for n in range(4)},
    "data": lambda rows: rows.share(_parse_data)[0],
    "n_data_bytes": lambda rows: rows.share(_parse_data)[1],
    "chain_id": _repeat_chain_id,
    "block_hash": _BLOCK_HASH,
    "timestamp": _BLOCK_TIME,
}


def _read_action(*names: str) -> Callable[[_Rows], _Array]:
    # A self-destruct has other field names: address, refundAddress, balance.
    return lambda rows: pc.coalesce(*(rows.own("action").field(name) for name in names))


def _read_result(name: str) -> Callable[[_Rows], _Array]:
    return lambda rows: rows.own("result").field(name)


def _parse_trace_value(rows: _Rows) -> Any:
    return parse_wide_integers(_read_action("value", "balance")(rows))


_TRACES: Mapping[str, _Build] = {
    "action_from": _Parsed(_read_action("from", "author", "address"), _optional_binary),
    "action_to": _Parsed(_read_action("to", "refundAddress"), _optional_binary),
    "action_value": lambda rows: rows.share(_parse_trace_value)[1],
    "action_gas": _Parsed(_read_action("gas"), _optional_integers),
    "action_input": _Parsed(_read_action("input"), _optional_binary),
    "action_call_type": _read_action("callType"),
    "action_init": _Parsed(_read_action("init"), _optional_binary),
    "action_reward_type": _read_action("rewardType"),
    "action_type": _read_own("type"),
    "result_gas_used": _Parsed(_read_result("gasUsed"), _optional_integers),
    "result_output": _Parsed(_read_result("output"), _optional_binary),
    "result_code": _Parsed(_read_result("code"), _optional_binary),
    "result_address": _Parsed(_read_result("address"), _optional_binary),
    "trace_address": lambda rows: join_lists(rows.own("traceAddress"), "_"),
    "subtraces": _read_own("subtraces"),
    "transaction_index": _read_own("transactionPosition"),
    "transaction_hash": _parse_binary_field("transactionHash", optional=True),
    "block_number": _read_own("blockNumber"),
    "block_hash": _parse_binary_field("blockHash"),
    "error": _read_own("error"),
    "chain_id": _repeat_chain_id,
    "action_value_binary": lambda rows: rows.share(_parse_trace_value)[0],
    "action_value_f64": lambda rows: rows.share(_parse_trace_value)[2],
}
_WITHDRAWALS: Mapping[str, _Build] = {
    "block_number": _Parsed(_read_block("number"), parse_integers),
    "block_hash": _BLOCK_HASH,
    "withdrawal_index": _parse_integer_field("index"),
    "validator_index": _parse_integer_field("validatorIndex"),
    "address": _parse_binary_field("address"),
    "amount_gwei": _parse_integer_field("amount"),
    "chain_id": _repeat_chain_id,
}


def _number_uncles(rows: _Rows) -> _Array:
    counts = list_lengths(rows.chunk.blocks.field("uncles"))
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pa.array(positions.astype(np.int64))


_UNCLES: Mapping[str, _Build] = {
    **_HEADER,
    "block_number": _Parsed(_read_block("number"), parse_integers),
    "block_hash": _BLOCK_HASH,
    "uncle_index": _number_uncles,
    "uncle_hash": _parse_binary_field("hash"),
    "uncle_number": _parse_integer_field("number"),
}
_BUILDERS: Mapping[str, Mapping[str, _Build]] = {
    "blocks": _BLOCKS,
    "transactions": _TRANSACTIONS,
    "logs": _LOGS,
    "traces": _TRACES,
    "withdrawals": _WITHDRAWALS,
    "uncles": _UNCLES,
}


def _list_withdrawals(chunk: BlockChunk, chain_id: int) -> _Rows:
    lists = chunk.blocks.field("withdrawals")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)  # blocks before Shanghai have none
    return _Rows(chunk, chain_id, lists.flatten(), np.asarray(lengths).astype(np.int64))


def _list_traces(chunk: BlockChunk, chain_id: int) -> _Rows:
    first = int(chunk.blocks.field("number")[0].as_py(), 16)
    owners = np.asarray(chunk.traces.field("blockNumber")) - first
    return _Rows(chunk, chain_id, chunk.traces, np.bincount(owners, minlength=len(chunk.blocks)))


def _list_uncles(chunk: BlockChunk, chain_id: int) -> _Rows:
    return _Rows(chunk, chain_id, chunk.uncles, list_lengths(chunk.blocks.field("uncles")))


_ROWS: Mapping[str, Callable[[BlockChunk, int], _Rows]] = {
    "blocks": lambda chunk, chain_id: _Rows(chunk, chain_id, chunk.blocks, None),
    "transactions": lambda chunk, chain_id: _Rows(
        chunk, chain_id, chunk.transactions, chunk.transaction_counts, chunk.receipts
    ),
    "logs": lambda chunk, chain_id: _Rows(chunk, chain_id, chunk.logs, chunk.logs_per_block),
    "traces": _list_traces,
    "withdrawals": _list_withdrawals,
    "uncles": _list_uncles,
}
