"""The HTTP API for people and scripts."""
