"""Objects of running attempts: scoped credentials, and the Dispatcher's own object endpoints."""
