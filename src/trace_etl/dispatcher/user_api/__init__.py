"""The HTTP API for users and scripts."""
