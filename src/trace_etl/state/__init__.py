"""Postgres state and all its SQL, one sub-package per concept."""
