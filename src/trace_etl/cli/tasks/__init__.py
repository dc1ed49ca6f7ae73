"""Commands about tasks: list, cancel, pause, backfill, watch."""
