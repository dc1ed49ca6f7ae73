"""Commands for the embedded stack: up, down, status, demo, prepare, devchain."""
