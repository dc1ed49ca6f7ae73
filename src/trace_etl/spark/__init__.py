"""Spark: the session, the chain data source, operators, inputs and writers, the runner."""
