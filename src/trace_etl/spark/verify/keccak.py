"""Keccak-256, the hash function of Ethereum."""

from importlib import import_module
from typing import Any

from trace_etl.proof import native
from trace_etl.spark.verify.rlp_columns import split

_keccak_256: Any = import_module("sha3").keccak_256  # safe-pysha3, which has no types


def keccak(data: bytes) -> bytes:
    """Return the Keccak-256 hash of bytes."""
    return _keccak_256(data).digest()


def keccak_rows(values: Any) -> list[bytes]:
    """Return the hashes of the rows of a binary column."""
    if native.kernels:
        return cut_hashes(native.kernels.keccak_rows(native.pass_column(values)))
    return [keccak(value) for value in split(values)]


def cut_hashes(content: bytes) -> list[bytes]:
    """Return consecutive hashes as a list."""
    return [content[at : at + 32] for at in range(0, len(content), 32)]
