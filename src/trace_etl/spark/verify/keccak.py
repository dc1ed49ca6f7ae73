"""Keccak-256, the hash function of Ethereum."""

from importlib import import_module
from typing import Any

_keccak_256: Any = import_module("sha3").keccak_256  # safe-pysha3, which has no types


def keccak(data: bytes) -> bytes:
    """Return the Keccak-256 hash of bytes."""
    return _keccak_256(data).digest()
