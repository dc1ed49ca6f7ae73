"""Bodies about tasks: retries, cancellations, backfills, pauses."""
