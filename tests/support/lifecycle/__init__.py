"""The task lifecycle: steps, a model of it, and recorded histories."""
