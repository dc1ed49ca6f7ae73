"""Tools for development and tests: a chain to read, and a checker of recorded histories."""
