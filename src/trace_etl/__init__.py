"""Trace: a Dispatcher decides, workers run, Spark computes, Postgres remembers."""

__version__ = "0.1.0"
