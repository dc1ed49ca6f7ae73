"""Commands about datasets: list, query, lineage, invalidate."""
