"""Benchmarks of our speed claims: `make bench [ONLY=name] [JSON=file]`."""
