"""One file per operator: what it needs, and how its rows come about."""
