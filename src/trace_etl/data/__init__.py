"""Postgres data: hot, appended and buffered tables, and all the SQL for them."""
