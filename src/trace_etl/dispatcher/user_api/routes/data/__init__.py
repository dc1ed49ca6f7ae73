"""Routes about datasets and their storage."""
