"""Runs the quickstart DAG on a given Spark master, to compare its output files."""

import json
import os
import subprocess
import sys
from pathlib import Path

from trace_etl.model.storage import SUCCESS_MARKER


def dag_outputs(master: str, root: Path, rpc_url: str, conf: dict[str, str]) -> dict[str, Path]:
    """Run the DAG in a separate process. Returns the directory of every output."""
    objects = root / "objects"
    arguments = [master, str(objects), str(root / "spark"), rpc_url, json.dumps(conf)]
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "support.dag_runs", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    places = json.loads(done.stdout.splitlines()[-1])
    return {name: objects / "trace" / place for name, place in places.items()}


def files_of(place: Path) -> dict[str, bytes]:
    """Return the content of the output's file and of its marker."""
    found = {file.name: file.read_bytes() for file in place.iterdir()}
    assert SUCCESS_MARKER in found and len(found) == 2
    return found
