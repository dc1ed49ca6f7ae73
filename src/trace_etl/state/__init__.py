"""Postgres state: all its SQL, one file per table."""
