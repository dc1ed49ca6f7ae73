"""Who calls, and what they may do: worker tokens, capability tokens, permissions."""
