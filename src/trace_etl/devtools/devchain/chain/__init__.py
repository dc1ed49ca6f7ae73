"""Blocks of the development chain: contents, hashes, forks."""
