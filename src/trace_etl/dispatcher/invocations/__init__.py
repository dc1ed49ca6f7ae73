"""Tasks of Lambda runtimes: the Dispatcher leases them, then invokes their functions."""
