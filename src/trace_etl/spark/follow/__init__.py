"""Following the tip of a chain into hot tables."""
