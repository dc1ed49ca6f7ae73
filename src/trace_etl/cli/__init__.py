"""The command `trace`: a thin HTTP client, and commands that start and stop the embedded stack."""
