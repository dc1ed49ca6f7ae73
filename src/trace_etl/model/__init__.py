"""Types that every layer shares: DAGs, tasks, leases, storage references, errors. Standard library only."""
