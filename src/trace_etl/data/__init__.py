"""Postgres data: hot, append and buffered tables, and all their SQL."""
