"""Damaged requests and random calls."""
