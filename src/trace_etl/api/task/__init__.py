"""Bodies of the calls that workers, tasks and the sink make."""
