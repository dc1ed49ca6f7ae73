"""Routes of the user API, one resource per file."""
