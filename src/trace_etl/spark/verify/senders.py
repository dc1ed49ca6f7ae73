"""Recover the senders of transactions from their signatures. Needs the extra `senders`."""

from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.columns import parse_binary, parse_minimal_bytes
from trace_etl.spark.verify.keccak import keccak
from trace_etl.spark.verify.rlp_columns import split
from trace_etl.spark.verify.transactions import encode_unsigned, read_parities, read_types

_Array = Any  # pyarrow ships no types
_UNSIGNED = 0x7E  # a deposit names its sender, and the transactions root proves it


def recover_senders(transactions: _Array) -> list[bytes]:
    """Return the address of each sender. Raises ValueError for an invalid signature, or BadTask."""
    senders = split(parse_binary(transactions.field("from")))
    rows = np.flatnonzero(read_types(transactions) != _UNSIGNED)
    signed = transactions.take(pa.array(rows))
    signatures = zip(
        split(parse_minimal_bytes(signed.field("r"))),
        split(parse_minimal_bytes(signed.field("s"))),
        read_parities(signed),
        strict=True,
    )
    messages = split(encode_unsigned(signed))
    for row, message, (r, s, parity) in zip(rows.tolist(), messages, signatures, strict=True):
        senders[row] = _recover(message, r, s, parity)
    return senders


def _recover(message: bytes, r: bytes, s: bytes, parity: int) -> bytes:
    try:
        from coincurve import PublicKey
    except ImportError as error:
        raise BadTask(
            "verify.senders: the package `coincurve` is not installed on this worker; install "
            "trace-etl[senders]"
        ) from error
    signature = r.rjust(32, b"\x00") + s.rjust(32, b"\x00") + bytes([parity])
    try:
        key = PublicKey.from_signature_and_message(signature, keccak(message), hasher=None)
    except Exception as error:  # the library raises plain exceptions
        raise ValueError(f"a transaction has an invalid signature ({error})") from error
    return keccak(key.format(compressed=False)[1:])[12:]
