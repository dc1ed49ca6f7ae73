"""Pauses, backpressure, caps and backfills."""
