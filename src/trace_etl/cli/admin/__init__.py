"""Commands that administer users, keys and recorded histories."""
