"""Connections to Postgres state and its migrations."""
