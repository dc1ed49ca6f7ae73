"""Partitions: commit, lineage, invalidations, reported defects, rebuilds, buffers."""
