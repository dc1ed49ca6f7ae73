"""Decode event logs one Arrow batch at a time, without a Python loop over rows."""
