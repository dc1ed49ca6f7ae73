"""Bodies of every HTTP call and queue message."""
