"""Tasks: claims, leases, completions, queries, counts, retention."""
