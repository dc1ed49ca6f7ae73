"""Chains: their tables, and what is verified of each block."""
