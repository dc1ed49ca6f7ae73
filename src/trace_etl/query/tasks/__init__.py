"""Queries of running tasks."""
