"""Pure decisions: retries, routing keys, backpressure, generations, deploy plans, waiting reasons. No IO."""
