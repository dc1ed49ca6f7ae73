"""The user API, one noun a file."""
