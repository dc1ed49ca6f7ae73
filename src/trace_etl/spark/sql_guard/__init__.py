"""The SQL guard: check that a text is one harmless SELECT over the inputs of its job."""
