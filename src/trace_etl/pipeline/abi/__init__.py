"""Decoding event logs, a batch at a time: Arrow in, Arrow out, no Python per row."""
