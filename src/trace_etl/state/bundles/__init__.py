"""Bundles of user-defined functions: their uploads, and their use in DAGs."""
