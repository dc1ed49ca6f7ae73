"""`python -m bench [--only NAME] [--json FILE]`: run the entries, print a table, write JSON."""

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Result

# Group → module with `run() -> list[Result]`. A group is run whole: its entries share a stand.
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
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="groups whose name begins so")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    given = parser.parse_args()
    chosen = [m for group, m in GROUPS.items() if group.startswith(given.only)]
    if not chosen:
        print(
            f"nothing begins with {given.only!r}; there are: {', '.join(GROUPS)}", file=sys.stderr
        )
        return 2
    results: list[Result] = []
    for module in chosen:
        results += importlib.import_module(module).run()
    _print(results)
    if given.json:
        given.json.write_text(json.dumps([r.row() for r in results], indent=2) + "\n")
    return 0


def _print(results: list[Result]) -> None:
    table = Table("name", "ours", "reference", "unit", "ratio", "goal", "met")
    for r in results:
        numbers = (f"{r.ours:,.3g}", f"{r.reference:,.3g}", r.unit, f"{r.ratio:.2f}")
        table.add_row(r.name, *numbers, r.goal, "yes" if r.met() else "no")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
