"""The worker: claims tasks, runs their operators, reports the result."""
