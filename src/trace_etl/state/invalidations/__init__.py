"""Invalidations and reported defects: record them, route them, rebuild what is invalid."""
