"""Real services in threads and processes, and whole stacks."""
