"""Pure decisions: what to do, never doing it. No IO."""
