"""Trace: a data platform for chain data, with a Dispatcher, workers, Spark and Postgres."""

__version__ = "0.1.0"
