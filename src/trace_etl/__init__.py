"""Trace: a Dispatcher that decides, workers that run, Spark that computes, Postgres that remembers."""

__version__ = "0.1.0"
