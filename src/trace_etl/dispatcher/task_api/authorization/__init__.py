"""Authorization of calls: worker tokens, capability tokens, permissions."""
