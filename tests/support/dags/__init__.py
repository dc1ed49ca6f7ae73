"""DAG files for tests."""
