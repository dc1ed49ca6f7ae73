"""What we claim about speed, runnable: `make bench [ONLY=name] [JSON=file]`."""
