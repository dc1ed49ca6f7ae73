"""The internal listener: endpoints for workers, tasks and the sink."""
