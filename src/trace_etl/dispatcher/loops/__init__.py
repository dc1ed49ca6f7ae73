"""Background agents: one file each, each bounded, each safe on every replica at once."""
