"""Code that runs inside each process of a stack under test: opens the files that a test asks for.

Python imports this module at its start if the directory is in PYTHONPATH. A test writes the paths
to `probe.paths` in the working directory of a service; the service answers in `probe.opened`.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

PATHS, OPENED = "probe.paths", "probe.opened"


def can_open(path: str) -> bool:
    try:
        Path(path).open("rb").close()
    except (PermissionError, FileNotFoundError):
        return False
    return True


def answer_requests(directory: Path) -> None:
    while True:
        if (directory / PATHS).exists():
            paths = json.loads((directory / PATHS).read_text())
            draft = directory / f"{OPENED}.new"
            draft.write_text(json.dumps([path for path in paths if can_open(path)]))
            (directory / PATHS).unlink()
            draft.replace(directory / OPENED)
        time.sleep(0.1)


# The process that forks Spark's Python workers must have no threads.
_FORKS = {"pyspark.daemon", "trace_etl.spark.session.python_daemon"}

if (
    "-m" in sys.orig_argv
    and {"TRACE_TLS_CA", "TRACE_HOST_FD"} & {*os.environ}
    and not _FORKS.intersection(sys.orig_argv)
):
    threading.Thread(target=answer_requests, args=(Path.cwd(),), daemon=True).start()
