"""Programs that run first, outside or inside a sandbox, and become the program of the user."""
