"""Bodies of every HTTP call and queue message: the contract, in one place."""
