"""Clients of the Dispatcher's internal API."""
