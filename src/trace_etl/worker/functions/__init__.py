"""The worker that runs user-defined functions in sandboxes."""
