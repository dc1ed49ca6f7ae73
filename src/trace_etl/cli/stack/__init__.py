"""Commands about the embedded stack: up, down, status, demo, devchain."""
