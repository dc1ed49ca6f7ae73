"""The calls of a sandboxed program: the broker, and the APIs it serves."""
