"""A chain as a Spark data source: plan ranges, fetch JSON-RPC in batches, yield Arrow."""
