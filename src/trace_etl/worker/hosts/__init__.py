"""Operator hosts: processes that run operators for a worker."""
