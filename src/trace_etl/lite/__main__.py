"""The background supervisor: reads its options from stdin and reports the start on stdout."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trace_etl.lite import stack
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.errors import StackError
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options


def run(request: dict[str, Any]) -> int:
    """Run the stack until it is stopped; return the exit code."""
    try:
        stack.up(
            Home(Path(request["home"])),
            Options(**request["options"]),
            on_up=_report_up,
            on_progress=_report_progress,
        )
    except StackError as error:
        _report({"code": error.code, "error": str(error), "remedy": error.remedy})
        return 1
    return 0


def _report_progress(ready: int, count: int) -> None:
    _write({"ready": ready, "count": count})


def _report_up(connection: StackConnection, seconds: float) -> None:
    _report({"connection": asdict(connection), "seconds": seconds})


def _report(content: dict[str, Any]) -> None:
    """Write the last line to the parent process, and close the pipe."""
    _write(content)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _write(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run(json.load(sys.stdin)))
