"""Set-up of the Python worker processes of Spark executors."""

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude everything imported so far from garbage collection. Call after the first task.

    PySpark collects garbage after every task, and scanning pandas takes longer than a small task.
    """
    gc.freeze()
