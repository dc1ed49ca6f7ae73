"""The tables of a chain: their columns, types and comments. Names and types follow cryo's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

ColumnSet = Literal["minimal", "standard", "full"]
ColumnChoice = ColumnSet | tuple[str, ...]
"""A set of columns, or names of columns that are added to the minimal ones."""


@dataclass(frozen=True)
class DescribedColumn:
    """A column that an operator writes."""

    name: str
    type: str
    """The name of the type in DAG files."""
    comment: str


def _list_columns(*rows: tuple[str, str, str]) -> tuple[DescribedColumn, ...]:
    return tuple(DescribedColumn(*row) for row in rows)


_BLOCK = ("block_number", "long", "Number of the block.")
_CHAIN = ("chain_id", "long", "Id of the chain (EIP-155).")
_TRANSACTION_INDEX = ("transaction_index", "long", "Position of the transaction in its block.")
_TRANSACTION_HASH = ("transaction_hash", "binary", "Hash of the transaction.")

_HASH = ("block_hash", "binary", "Hash of the block's header.")
_TIME = ("timestamp", "long", "Time of the block, in seconds since 1970 (UTC).")
_PARENT = ("parent_hash", "binary", "Hash of the parent's header.")
_UNCLES = ("uncles_hash", "binary", "Hash of the list of uncles.")
_AUTHOR = ("author", "binary", "Address that receives the fees: miner or fee recipient.")
_STATE = ("state_root", "binary", "Root of the state after the block.")
_TRANSACTIONS_ROOT = ("transactions_root", "binary", "Root of the block's transactions.")
_RECEIPTS_ROOT = ("receipts_root", "binary", "Root of the block's receipts.")
_BLOOM = ("logs_bloom", "binary", "Bloom filter of the logs: 256 bytes.")
_DIFFICULTY = ("difficulty", "long", "Difficulty of the block; 0 since proof of stake.")
_GAS_LIMIT = ("gas_limit", "long", "Gas that the block may use.")
_MIX = (
    "mix_hash",
    "binary",
    "Mix hash; since proof of stake the random value of the beacon chain.",
)
_NONCE = ("nonce", "binary", "Nonce of proof of work: 8 bytes.")
_EXTRA = ("extra_data", "binary", "Data that the block's producer may set freely.")
_LARGEST = "9223372036854775807 if it is larger, see the column with `_string`"

CHAIN_TABLES: dict[str, tuple[DescribedColumn, ...]] = {
    "blocks": _list_columns(
        _HASH,
        _AUTHOR,
        _BLOCK,
        ("gas_used", "long", "Gas that all transactions of the block used."),
        _EXTRA,
        _TIME,
        ("base_fee_per_gas", "long", f"Base fee in wei; null before EIP-1559; {_LARGEST}."),
        _CHAIN,
    ),
    "transactions": _list_columns(
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
        ("gas_price", "long", f"Price per gas that was paid, in wei; {_LARGEST}."),
        ("transaction_type", "long", "Type of the transaction (EIP-2718); 0 is a legacy one."),
        (
            "max_priority_fee_per_gas",
            "long",
            f"Maximum tip per gas in wei; null before EIP-1559; {_LARGEST}.",
        ),
        (
            "max_fee_per_gas",
            "long",
            f"Maximum fee per gas in wei; null before EIP-1559; {_LARGEST}.",
        ),
        ("success", "boolean", "Whether the transaction succeeded; null if the node does not say."),
        ("n_input_bytes", "long", "Bytes of `input`."),
        ("n_input_zero_bytes", "long", "Bytes of `input` that are zero."),
        ("n_input_nonzero_bytes", "long", "Bytes of `input` that are not zero."),
        _CHAIN,
    ),
    "logs": _list_columns(
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
    "traces": _list_columns(
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
        _HASH,
        ("error", "string", "Why the call failed; null if it did not."),
        _CHAIN,
        ("action_value_binary", "binary", "Transferred wei, exact: 32 bytes, big-endian."),
        ("action_value_f64", "double", "Transferred wei, rounded."),
    ),
    # cryo has no table of withdrawals; these names follow the node's fields.
    "withdrawals": _list_columns(
        _BLOCK,
        _HASH,
        ("withdrawal_index", "long", "Number of the withdrawal on the chain."),
        ("validator_index", "long", "Number of the validator that withdraws."),
        ("address", "binary", "Address that receives the amount."),
        ("amount_gwei", "long", "Amount in gwei: 10^9 wei."),
        _CHAIN,
    ),
    # cryo has no table of uncles either; the names are those of blocks.
    "uncles": _list_columns(
        _BLOCK,
        _HASH,
        ("uncle_index", "long", "Position of the uncle in its block."),
        ("uncle_hash", "binary", "Hash of the uncle's header."),
        ("uncle_number", "long", "Number of the uncle."),
        _PARENT,
        _UNCLES,
        _AUTHOR,
        _STATE,
        _TRANSACTIONS_ROOT,
        _RECEIPTS_ROOT,
        _BLOOM,
        _DIFFICULTY,
        _GAS_LIMIT,
        ("gas_used", "long", "Gas that the uncle's transactions used."),
        _TIME,
        _EXTRA,
        _MIX,
        _NONCE,
        _CHAIN,
    ),
}
"""The standard columns, with which the tables began. Their order and types do not change."""

_FULL: dict[str, tuple[DescribedColumn, ...]] = {
    "blocks": _list_columns(
        _PARENT,
        _UNCLES,
        _STATE,
        _TRANSACTIONS_ROOT,
        _RECEIPTS_ROOT,
        _BLOOM,
        _GAS_LIMIT,
        _DIFFICULTY,
        (
            "total_difficulty_binary",
            "binary",
            "Difficulty of the chain, exact; null if not reported.",
        ),
        ("total_difficulty_string", "string", "Difficulty of the chain, as decimal digits."),
        ("total_difficulty_f64", "double", "Difficulty of the chain, rounded."),
        ("size", "long", "Bytes of the block, as the node reports them."),
        _MIX,
        _NONCE,
        ("withdrawals_root", "binary", "Root of the withdrawals; null before Shanghai."),
        ("blob_gas_used", "long", "Gas of the block's blobs; null before Cancun."),
        ("excess_blob_gas", "long", "Blob gas above the target so far; null before Cancun."),
        ("parent_beacon_block_root", "binary", "Root of the beacon block; null before Cancun."),
        ("requests_hash", "binary", "Hash of the execution requests; null before Prague."),
        ("transaction_count", "long", "Number of the block's transactions."),
        ("base_fee_per_gas_string", "string", "Base fee in wei, exact; null before EIP-1559."),
    ),
    "transactions": _list_columns(
        _HASH,
        _TIME,
        ("n_rlp_bytes", "long", "Bytes of the signed transaction; null for an unknown type."),
        ("v", "long", "`v` of the signature, as the node reports it."),
        ("r", "binary", "`r` of the signature: 32 bytes."),
        ("s", "binary", "`s` of the signature: 32 bytes."),
        ("y_parity", "boolean", "Parity of the signature; null for legacy transactions."),
        ("access_list", "string", "Access list as JSON; null if there is none."),
        (
            "authorization_list",
            "string",
            "Authorizations (EIP-7702) as JSON; null if there are none.",
        ),
        ("blob_versioned_hashes", "string", "Hashes of the blobs as JSON; null if there are none."),
        ("max_fee_per_blob_gas", "long", "Maximum fee per blob gas in wei; null without blobs."),
        ("blob_gas_used", "long", "Gas of the transaction's blobs; null without blobs."),
        ("blob_gas_price", "long", "Price per blob gas in wei; null without blobs."),
        ("contract_address", "binary", "Address of the created contract; null if there is none."),
        ("cumulative_gas_used", "long", "Gas of the block's transactions up to this one."),
        ("effective_gas_price", "long", f"Price per gas that was paid, in wei; {_LARGEST}."),
        ("root", "binary", "Root of the state after the transaction; null since Byzantium."),
        ("gas_price_string", "string", "Price per gas in wei, exact."),
        ("max_priority_fee_per_gas_string", "string", "Maximum tip per gas in wei, exact."),
        ("max_fee_per_gas_string", "string", "Maximum fee per gas in wei, exact."),
        # Fields of layer-2 chains; null elsewhere.
        ("l1_fee", "long", "Fee for data on layer 1, in wei (OP stack)."),
        ("l1_gas_price", "long", "Gas price of layer 1, in wei (OP stack)."),
        ("l1_gas_used", "long", "Gas on layer 1 (OP stack)."),
        ("l1_fee_scalar", "string", "Factor of the fee for layer 1, as decimal text (OP stack)."),
        ("l1_blob_base_fee", "long", "Blob base fee of layer 1, in wei (OP stack since Ecotone)."),
        ("l1_base_fee_scalar", "long", "Factor of the base fee (OP stack since Ecotone)."),
        (
            "l1_blob_base_fee_scalar",
            "long",
            "Factor of the blob base fee (OP stack since Ecotone).",
        ),
        ("gas_used_for_l1", "long", "Gas for data on layer 1 (Arbitrum)."),
        ("l1_block_number", "long", "Block of layer 1 (Arbitrum)."),
        ("source_hash", "binary", "Origin of a deposit (OP stack)."),
        ("mint_string", "string", "Wei that a deposit creates, exact (OP stack)."),
        ("deposit_nonce", "long", "Nonce of a deposit (OP stack)."),
    ),
    "logs": _list_columns(_HASH, _TIME),
}
"""Columns that follow the standard ones in `full`. New ones are added at the end."""

_MINIMAL: dict[str, tuple[str, ...]] = {
    "blocks": ("block_hash", "block_number", "timestamp"),
    "transactions": (
        *("block_number", "transaction_index", "transaction_hash"),
        *("from_address", "to_address", "value_binary", "success"),
    ),
    "logs": (
        *("block_number", "transaction_index", "log_index", "transaction_hash", "address"),
        *("topic0", "topic1", "topic2", "topic3", "data"),
    ),
}


def list_columns(table: str, choice: ColumnChoice = "full") -> tuple[DescribedColumn, ...]:
    """Return the columns of a table, in their fixed order. Tables without sets have all columns."""
    every = (*CHAIN_TABLES[table], *_FULL.get(table, ()))
    if choice == "full" or table not in _MINIMAL:
        return every
    if choice == "standard":
        return CHAIN_TABLES[table]
    names = {*_MINIMAL[table], *(choice if choice != "minimal" else ())}
    return tuple(column for column in every if column.name in names)


def find_unknown_columns(tables: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the names that no table has."""
    known = {column.name for table in tables for column in list_columns(table)}
    return [name for name in names if name not in known]


FINDINGS = _list_columns(
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
