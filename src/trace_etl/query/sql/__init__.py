"""SQL in a query process: the guard, the DuckDB engine and the tables it reads."""
