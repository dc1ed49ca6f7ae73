"""Recorded runs of the task lifecycle, and the checker of their invariants. Pure: no IO."""
