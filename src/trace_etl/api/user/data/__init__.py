"""Bodies of calls about data: datasets, batches, invalidations, lineage, queries and storage."""
