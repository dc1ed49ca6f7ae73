"""The tables of a chain: their columns, types and comments. Names and types follow cryo's."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DescribedColumn:
    """A column that an operator writes."""

    name: str
    type: str
    """The name of the type in DAG files."""
    comment: str


def _columns(*rows: tuple[str, str, str]) -> tuple[DescribedColumn, ...]:
    return tuple(DescribedColumn(*row) for row in rows)


_BLOCK = ("block_number", "long", "Number of the block.")
_CHAIN = ("chain_id", "long", "Id of the chain (EIP-155).")
_TRANSACTION_INDEX = ("transaction_index", "long", "Position of the transaction in its block.")
_TRANSACTION_HASH = ("transaction_hash", "binary", "Hash of the transaction.")

CHAIN_TABLES: dict[str, tuple[DescribedColumn, ...]] = {
    "blocks": _columns(
        ("block_hash", "binary", "Hash of the block's header."),
        ("author", "binary", "Address that receives the fees: miner or fee recipient."),
        _BLOCK,
        ("gas_used", "long", "Gas that all transactions of the block used."),
        ("extra_data", "binary", "Data that the block's producer may set freely."),
        ("timestamp", "long", "Time of the block, in seconds since 1970 (UTC)."),
        ("base_fee_per_gas", "long", "Base fee in wei; null before EIP-1559."),
        _CHAIN,
    ),
    "transactions": _columns(
        _BLOCK,
        _TRANSACTION_INDEX,
        _TRANSACTION_HASH,
        ("nonce", "long", "Number of transactions that the sender sent before."),
        ("from_address", "binary", "Address of the sender."),
        ("to_address", "binary", "Address of the receiver; null if a contract is created."),
        ("value_binary", "binary", "Transferred wei, exact: 32 bytes, big-endian."),
        ("value_string", "string", "Transferred wei, exact: decimal digits."),
        ("value_f64", "double", "Transferred wei, rounded."),
        ("input", "binary", "Call data."),
        ("gas_limit", "long", "Gas that the transaction may use."),
        ("gas_used", "long", "Gas that the transaction used."),
        ("gas_price", "long", "Price per gas that was paid, in wei."),
        ("transaction_type", "long", "Type of the transaction (EIP-2718); 0 is a legacy one."),
        ("max_priority_fee_per_gas", "long", "Maximum tip per gas in wei; null before EIP-1559."),
        ("max_fee_per_gas", "long", "Maximum fee per gas in wei; null before EIP-1559."),
        ("success", "boolean", "Whether the transaction succeeded; null if the node does not say."),
        ("n_input_bytes", "long", "Bytes of `input`."),
        ("n_input_zero_bytes", "long", "Bytes of `input` that are zero."),
        ("n_input_nonzero_bytes", "long", "Bytes of `input` that are not zero."),
        _CHAIN,
    ),
    "logs": _columns(
        _BLOCK,
        _TRANSACTION_INDEX,
        ("log_index", "long", "Position of the log in its block."),
        _TRANSACTION_HASH,
        ("address", "binary", "Address of the contract that emitted the log."),
        ("topic0", "binary", "First topic: usually the hash of the event's signature."),
        ("topic1", "binary", "Second topic: first indexed argument; null if there is none."),
        ("topic2", "binary", "Third topic: second indexed argument; null if there is none."),
        ("topic3", "binary", "Fourth topic: third indexed argument; null if there is none."),
        ("data", "binary", "ABI-encoded arguments that are not indexed."),
        ("n_data_bytes", "long", "Bytes of `data`."),
        _CHAIN,
    ),
    "traces": _columns(
        ("action_from", "binary", "Address of the caller or creator; null for rewards."),
        ("action_to", "binary", "Called or refunded address; null for creations."),
        ("action_value", "string", "Transferred wei, exact: decimal digits."),
        ("action_gas", "long", "Gas that the call may use."),
        ("action_input", "binary", "Call data; null if nothing is called."),
        ("action_call_type", "string", "call, delegatecall, callcode or staticcall."),
        ("action_init", "binary", "Code that creates a contract."),
        ("action_reward_type", "string", "block or uncle, for rewards."),
        ("action_type", "string", "call, create, suicide or reward."),
        ("result_gas_used", "long", "Gas that the call used; null if it failed."),
        ("result_output", "binary", "Data that the call returned."),
        ("result_code", "binary", "Code of the created contract."),
        ("result_address", "binary", "Address of the created contract."),
        ("trace_address", "string", "Path in the tree of calls: positions, joined by `_`."),
        ("subtraces", "long", "Number of direct inner calls."),
        ("transaction_index", "long", "Position of the transaction; null for rewards."),
        ("transaction_hash", "binary", "Hash of the transaction; null for rewards."),
        _BLOCK,
        ("block_hash", "binary", "Hash of the block's header."),
        ("error", "string", "Why the call failed; null if it did not."),
        _CHAIN,
        ("action_value_binary", "binary", "Transferred wei, exact: 32 bytes, big-endian."),
        ("action_value_f64", "double", "Transferred wei, rounded."),
    ),
    # cryo has no table of withdrawals; these names follow the node's fields.
    "withdrawals": _columns(
        _BLOCK,
        ("block_hash", "binary", "Hash of the block's header."),
        ("withdrawal_index", "long", "Number of the withdrawal on the chain."),
        ("validator_index", "long", "Number of the validator that withdraws."),
        ("address", "binary", "Address that receives the amount."),
        ("amount_gwei", "long", "Amount in gwei: 10^9 wei."),
        _CHAIN,
    ),
}
FINDINGS = _columns(
    ("block_number", "long", "Number of the block with the problem."),
    ("problem", "string", "missing, not on the chain, duplicate, or how the rows differ."),
    ("expected_rows", "long", "Rows of the block on the chain."),
    ("found_rows", "long", "Rows of the block in the dataset."),
)
"""The columns of `integrity_check`."""

_LOGS = {column.name: column.comment for column in CHAIN_TABLES["logs"]}
LOG_COMMENTS = {
    **{name: _LOGS[name] for name in ("block_number", "transaction_index", "log_index")},
    **{name: _LOGS[name] for name in ("transaction_hash", "address", "chain_id")},
    "timestamp": "Time of the block, in seconds since 1970 (UTC).",
}
"""Comments of the columns that operators copy from logs."""
TRANSFER_COMMENTS = {
    **LOG_COMMENTS,
    "token": "Address of the token's contract.",
    "from_address": "Address of the sender; zero if the amount is minted.",
    "to_address": "Address of the receiver; zero if the amount is burned.",
    "value_binary": "Amount in the token's smallest unit, exact: 32 bytes, big-endian.",
    "value_string": "Amount in the token's smallest unit, exact: decimal digits.",
    "value_f64": "Amount in the token's smallest unit, rounded.",
}
