"""The sink process: writes buffered batches to Postgres data and drops retired tables."""
