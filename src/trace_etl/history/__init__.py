"""Recorded runs of the task lifecycle, and what they prove about it. Pure: no IO."""
