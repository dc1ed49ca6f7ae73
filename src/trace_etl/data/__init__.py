"""Postgres data: hot tables of chains, who follows them, and all the SQL for it."""
