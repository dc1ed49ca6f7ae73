"""Fork the Python workers of Spark from a process that has imported what they need.

PySpark's own daemon forks first, and every worker imports pandas, pyarrow and Trace again: 0.8 s of
processor time each. It does so because a fork loses the threads that libraries start when they are
imported. This daemon turns these threads off. If one starts nevertheless, PySpark's daemon runs instead.
"""

import gc
import importlib
import os
import sys

from trace_etl.process import WITHOUT_THREADS, count_threads
from trace_etl.spark.session import executor_output

_MODULES = (
    "pyspark.worker",
    "pandas",
    "pyarrow.parquet",
    "trace_etl.spark.evm.source",
    "trace_etl.spark.operators.cryo_ingest",  # imports what reads inputs and writes outputs
)


def import_modules() -> bool:
    """Import what workers use. Returns whether this process has one thread and may therefore fork."""
    os.environ.update(WITHOUT_THREADS)
    for name in _MODULES:
        importlib.import_module(name)
    return count_threads() == 1


def main() -> None:
    """Serve forks until Spark closes the standard input."""
    if not import_modules():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606
    executor_output.install()
    gc.freeze()  # PySpark collects garbage after every task; scanning the modules would take longer

    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
