"""Bodies about DAGs: deploys, jobs, runtimes, schedules and functions."""
