"""`trace up` with the real supervisor, home, Postgres and keys, and stubs for the services."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trace_etl.lite import stack
from trace_etl.lite.connection import StackConnection
from trace_etl.lite.errors import StackError
from trace_etl.lite.home import Home
from trace_etl.lite.options import Options
from trace_etl.lite.processes.log_view import Line
from trace_etl.lite.processes.services import Blueprint, StackService, list_services

MODULE = "support.services.stub_service"


def stub_services(plan: Blueprint, inherited: Mapping[str, str]) -> list[StackService]:
    services = list_services(plan, inherited)
    return [replace(service, argv=(sys.executable, "-P", "-m", MODULE)) for service in services]


def announce(connection: StackConnection, seconds: float) -> None:
    print("up", flush=True)


def report(ready: int, count: int) -> None:
    print(f"ready: {ready} of {count}", file=sys.stderr, flush=True)


def show(line: Line) -> None:
    print(line, file=sys.stderr, flush=True)


def main(home: str, options: str) -> int:
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, known)]
    )
    try:
        stack.up(
            Home(Path(home)),
            Options(**json.loads(options)),
            on_up=announce,
            on_progress=report,
            show=show,
            services=stub_services,
        )
    except StackError as refused:
        print(f"{refused.code}: {refused}\n{refused.remedy}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
