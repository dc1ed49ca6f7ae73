"""Batched JSON-RPC over a pool of endpoints."""
