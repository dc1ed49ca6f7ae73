"""The command `trace`: a thin HTTP client, and the embedded stack's switches."""
