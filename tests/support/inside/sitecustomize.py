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


def start_thread() -> None:
    threading.Thread(target=answer_requests, args=(Path.cwd(),), daemon=True).start()


def start_when_forked(event: str, arguments: tuple[object, ...]) -> None:
    """Start the thread with the first event of a service that has its environment, and its rights only."""
    restricts_itself = os.environ.get("TRACE_ALLOWED_PATHS", "null") != "null"
    is_complete = "TRACE_TLS_CA" in os.environ and event != "os.putenv"
    if is_complete and not restricts_itself and not has_started:
        has_started.append(True)
        start_thread()


# Processes that fork others must have no threads.
_FORKS = {"pyspark.daemon", "trace_etl.spark.session.python_daemon"}
_FORKS_SERVICES = "trace_etl.lite.processes.fork_server"
has_started: list[bool] = []

if _FORKS_SERVICES in sys.orig_argv:
    sys.addaudithook(start_when_forked)
elif (
    "-m" in sys.orig_argv
    and {"TRACE_TLS_CA", "TRACE_HOST_FD"} & {*os.environ}
    and not _FORKS.intersection(sys.orig_argv)
):
    start_thread()
