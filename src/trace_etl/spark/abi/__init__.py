"""Decoding event logs, one Arrow batch at a time, without Python per row."""
