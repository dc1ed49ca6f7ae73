"""Commands for administrators: users, keys, recorded runs."""
