"""Spark: the session, the chain as a data source, operators, and the one writer."""
