"""What our code does once in every Python process that Spark runs it in."""

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Keep the collector off everything imported by now; called when the first task is done.

    PySpark runs it after every task, and going through pandas takes longer than a small task.
    """
    gc.freeze()
