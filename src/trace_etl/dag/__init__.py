"""The DAG file: its schema, parsing with positions, checks and operator configs. No IO."""
