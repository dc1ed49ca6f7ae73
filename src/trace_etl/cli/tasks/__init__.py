"""Commands for tasks: list, cancel, backfill, watch, outbox."""
