"""Compute a block's header and hash, with real roots and a real parent hash."""

from itertools import accumulate
from typing import NamedTuple

from trace_etl.devtools.devchain.chain import bloom, rlp
from trace_etl.devtools.devchain.chain.body import Body
from trace_etl.devtools.devchain.chain.transaction import encode_receipt
from trace_etl.devtools.devchain.chain.trie import ordered_root
from trace_etl.spark.verify.keccak import keccak

GENESIS_PARENT = bytes(32)
GENESIS_TIME = 1_700_000_000
SECONDS_PER_BLOCK = 12
GAS_LIMIT = 60_000_000
NO_UNCLES = keccak(rlp.encode(()))


class Header(NamedTuple):
    """A post-London header; the fields are in hash order."""

    parent_hash: bytes
    uncles_hash: bytes
    miner: bytes
    state_root: bytes  # random: there is no state behind it
    transactions_root: bytes
    receipts_root: bytes
    logs_bloom: bytes
    difficulty: int
    number: int
    gas_limit: int
    gas_used: int
    timestamp: int
    extra_data: bytes
    mix_hash: bytes
    nonce: bytes
    base_fee: int


class SealedBlock(NamedTuple):
    """The computed parts of a block; with its body they are enough to render it."""

    hash: bytes
    fork: int
    header: Header
    transaction_hashes: tuple[bytes, ...]
    size: int


def seal(body: Body, parent_hash: bytes) -> SealedBlock:
    """Compute header and hashes of a body on top of its parent."""
    transactions = [transaction.encode() for transaction in body.transactions]
    header = _build_header(body, parent_hash, ordered_root(transactions))
    encoded = rlp.encode(header)
    return SealedBlock(
        hash=keccak(encoded),
        fork=body.fork,
        header=header,
        transaction_hashes=tuple(map(keccak, transactions)),
        size=_compute_size(encoded, body, transactions),
    )


def _build_header(body: Body, parent_hash: bytes, transactions_root: bytes) -> Header:
    cumulative = list(accumulate(outcome.gas_used for outcome in body.outcomes))
    blooms = [outcome.bloom() for outcome in body.outcomes]
    receipts = list(map(encode_receipt, body.transactions, body.outcomes, cumulative, blooms))
    return Header(
        parent_hash=parent_hash,
        uncles_hash=NO_UNCLES,
        miner=body.miner,
        state_root=body.state_root,
        transactions_root=transactions_root,
        receipts_root=ordered_root(receipts),
        logs_bloom=bloom.to_bytes(bloom.union(blooms)),
        difficulty=0,
        number=body.number,
        gas_limit=GAS_LIMIT,
        gas_used=cumulative[-1] if cumulative else 0,
        timestamp=GENESIS_TIME + SECONDS_PER_BLOCK * body.number,
        extra_data=f"trace devchain, fork {body.fork}".encode(),
        mix_hash=body.mix_hash,
        nonce=bytes(8),
        base_fee=body.base_fee,
    )


def _compute_size(header: bytes, body: Body, transactions: list[bytes]) -> int:
    """Compute the length of the encoded block: header, transactions, no uncles."""
    wrapped = [
        rlp.encode_bytes(raw) if transaction.type else raw
        for transaction, raw in zip(body.transactions, transactions, strict=True)
    ]
    return len(rlp.encode_list((header, rlp.encode_list(wrapped), rlp.encode(()))))
