"""Processes that check and run queries: a pool of them, forked by one server."""
