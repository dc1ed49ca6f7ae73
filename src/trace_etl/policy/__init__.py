"""Pure decisions: retries, backpressure, backfills, generations, deploy plans, waiting reasons. No IO."""
