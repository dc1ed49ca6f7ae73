"""The worker process: claims tasks, runs their operators, reports the results."""
