"""Keccak-256 by the pycryptodome backend, named outright so that no environment picks another."""

from eth_hash.backends.pycryptodome import CryptodomeBackend

keccak = CryptodomeBackend().keccak256
