"""Datasets, hot tables and stored objects, and consumers of them."""
