"""Run benchmarks, print a table and optionally write JSON."""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Result, show_progress

# Group → module with `run() -> Iterable[Result]`. The entries of a group share one setup.
GROUPS = {
    "small_task_vs_spark": "bench.small_task",
    "ingest": "bench.ingest",
    "tip": "bench.tip",
    "operators": "bench.operators",
    "compaction": "bench.compaction",
    "memory": "bench.memory",
    "lifecycle_event_to_claim": "bench.latency",
    "lifecycle_vs": "bench.lifecycle",
    "lifecycle_claim_growth": "bench.growth",
    "routing": "bench.routing",
    "idle": "bench.idle",
    "restart": "bench.restart",
    "deploy": "bench.deploy",
    "objects": "bench.objects",
    "health": "bench.health",
    "query": "bench.query",
    "sink": "bench.sink",
    "workers": "bench.workers",
    "console": "bench.console",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="run only groups whose name starts with this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    groups = [group for group in GROUPS if group.startswith(arguments.only)]
    if not groups:
        names = ", ".join(GROUPS)
        print(f"no group starts with {arguments.only!r}; the groups are {names}", file=sys.stderr)
        return 2
    results = [result for group in groups for result in _run_group(group)]
    _print_results(results)
    if arguments.json:
        arguments.json.write_text(json.dumps([r.row() for r in results], indent=2) + "\n")
    return 0


def _run_group(group: str) -> Iterator[Result]:
    """Yield the results of a group, and show each as soon as it is known."""
    show_progress(f"{group}: setting up")
    began = time.monotonic()
    for result in importlib.import_module(GROUPS[group]).run():
        verdict = "met" if result.met() else "MISSED"
        show_progress(f"{result.name}: {result.ratio:.2f}, goal {result.goal}: {verdict}")
        yield result
    show_progress(f"{group}: took {time.monotonic() - began:.0f} s")


def _print_results(results: list[Result]) -> None:
    table = Table("name", "ours", "reference", "unit", "ratio", "goal", "met")
    for r in results:
        numbers = (f"{r.ours:,.3g}", f"{r.reference:,.3g}", r.unit, f"{r.ratio:.2f}")
        table.add_row(r.name, *numbers, r.goal, "yes" if r.met() else "no")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
