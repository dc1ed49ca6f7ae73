"""The change stream, the event log and metrics."""
