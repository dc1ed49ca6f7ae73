"""`trace up` with the real supervisor, home, Postgres and keys, and stubs for the services."""

import json
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
from trace_etl.lite.processes.parts import Blueprint, Part, service_parts

SERVICE = str(Path(__file__).with_name("stub_service.py"))


def stub_parts(plan: Blueprint, inherited: Mapping[str, str]) -> list[Part]:
    parts = service_parts(plan, inherited)
    return [replace(part, argv=(sys.executable, SERVICE, part.name)) for part in parts]


def announce(connection: StackConnection, seconds: float) -> None:
    print("up", flush=True)


def show(line: Line) -> None:
    print(line, file=sys.stderr, flush=True)


def main(home: str, options: str) -> int:
    try:
        stack.up(
            Home(Path(home)),
            Options(**json.loads(options)),
            on_up=announce,
            show=show,
            services=stub_parts,
        )
    except StackError as refused:
        print(f"{refused.code}: {refused}\n{refused.remedy}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
