"""The sink: writes batches of buffered datasets into Postgres data."""
