"""Run benchmarks, print a table and optionally write JSON."""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Result

# Group → module with `run() -> list[Result]`. The entries of a group share one setup.
GROUPS = {
    "small_task_vs_spark": "bench.small_task",
    "ingest": "bench.ingest",
    "tip": "bench.tip",
    "operators": "bench.operators",
    "compaction": "bench.compaction",
    "memory": "bench.memory",
    "lifecycle": "bench.lifecycle",
    "routing": "bench.routing",
    "idle": "bench.idle",
    "deploy": "bench.deploy",
    "objects": "bench.objects",
    "query": "bench.query",
    "sink": "bench.sink",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="run only groups whose name starts with this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    modules = [m for group, m in GROUPS.items() if group.startswith(arguments.only)]
    if not modules:
        names = ", ".join(GROUPS)
        print(f"no group starts with {arguments.only!r}; the groups are {names}", file=sys.stderr)
        return 2
    results: list[Result] = []
    for module in modules:
        results += importlib.import_module(module).run()
    _print_results(results)
    if arguments.json:
        arguments.json.write_text(json.dumps([r.row() for r in results], indent=2) + "\n")
    return 0


def _print_results(results: list[Result]) -> None:
    table = Table("name", "ours", "reference", "unit", "ratio", "goal", "met")
    for r in results:
        numbers = (f"{r.ours:,.3g}", f"{r.reference:,.3g}", r.unit, f"{r.ratio:.2f}")
        table.add_row(r.name, *numbers, r.goal, "yes" if r.met() else "no")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
