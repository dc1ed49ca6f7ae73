"""Bodies of the user API and the Query Service."""
