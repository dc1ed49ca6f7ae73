"""The Query Service: DuckDB over the committed partitions of published datasets."""
