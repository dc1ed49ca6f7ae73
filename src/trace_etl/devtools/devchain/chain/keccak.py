"""Keccak-256 of pycryptodome. The import is explicit so that no environment variable changes it."""

from eth_hash.backends.pycryptodome import CryptodomeBackend

keccak = CryptodomeBackend().keccak256
