"""Routes of DAGs: deploys, jobs, runtimes and functions."""
