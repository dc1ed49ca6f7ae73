"""Routes of tasks: retries, cancellations, backfills, pauses."""
