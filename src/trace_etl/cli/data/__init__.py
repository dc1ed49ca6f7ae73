"""Commands for datasets: list, query, lineage, invalidations, batches."""
