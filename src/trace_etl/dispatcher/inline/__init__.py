"""Operators that run inside the Dispatcher."""
