"""Spark clusters, and tasks that run on them without a Dispatcher."""
