"""Partitions: commits, lineage, invalidations, reported defects, rebuilds and buffered batches."""
