"""Start the stack in the background and wait for the report of its start."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trace_etl.lite.connection import StackConnection
from trace_etl.lite.errors import ServiceFailed, StackError
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options
from trace_etl.lite.processes import lock, log_view

OnProgress = Callable[[int, int], None]
"""Called with the number of processes that are ready, and of all."""


def start(
    home: Home, options: Options, on_progress: OnProgress = lambda ready, count: None
) -> tuple[StackConnection, float]:
    """Start the stack in the background and wait until it is up. Raises StackError."""
    with home.removed_if_refused():
        return _start(home, options, on_progress)


def _start(home: Home, options: Options, on_progress: OnProgress) -> tuple[StackConnection, float]:
    home.open()
    if lock.holder(home.lock) is not None:
        raise lock.already_running(home.lock)
    log = home.logs / "supervisor.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trace_etl.lite"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    return _read_report(_send_options(process, home, options, on_progress), log)


def _send_options(
    process: subprocess.Popen[bytes], home: Home, options: Options, on_progress: OnProgress
) -> dict[str, Any] | None:
    """Send the options and return the last report. On stdin: an RPC URL may contain a key."""
    assert process.stdin and process.stdout
    request = {"home": str(home.path), "options": asdict(options)}
    try:
        with process.stdin, process.stdout:
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            for line in process.stdout:
                report: dict[str, Any] = json.loads(line)
                if "ready" not in report:
                    return report
                on_progress(report["ready"], report["count"])
            return None
    except KeyboardInterrupt:
        process.terminate()
        raise


def _read_report(answer: dict[str, Any] | None, log: Path) -> tuple[StackConnection, float]:
    if answer is None:
        raise ServiceFailed(
            f"the supervisor exited during its start:\n{log_view.tail(log)}", f"see {log}"
        )
    if "error" in answer:
        kinds = {kind.code: kind for kind in StackError.__subclasses__()}
        raise kinds.get(answer["code"], StackError)(answer["error"], answer["remedy"])
    return StackConnection(**answer["connection"]), answer["seconds"]
