"""Runs the same tasks on a Spark master in a separate process, to compare their files."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.data.hot_tables import HotTables, InputSpec, filtered_plan, hot_tasks
from support.spark.dag_runs import run_dag
from support.spark.spark_tasks import directory
from trace_etl.model.storage import SUCCESS_MARKER
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

_TESTS = Path(__file__).parents[2]
_QUICKSTART = _TESTS.parent / "examples" / "quickstart" / "dag.yaml"


@dataclass(frozen=True)
class Outputs:
    """The directories of the outputs by name, and the plan of a filtered read of a hot table."""

    quickstart: dict[str, Path]
    hot: dict[str, Path]
    plan: str


def run_outputs(
    master: str,
    root: Path,
    rpc_url: str,
    conf: dict[str, str],
    tables: HotTables | None = None,
    where: InputSpec | None = None,
) -> Outputs:
    """Run the quickstart DAG, and tasks that read the hot tables if there are any."""
    arguments = {"master": master, "root": str(root), "rpc_url": rpc_url, "conf": conf}
    if tables is not None:
        arguments |= {"dsn": tables.dsn, "inputs": tables.inputs, "where": where}
    process = subprocess.run(
        [sys.executable, "-m", "support.spark.dag_outputs"],
        input=json.dumps(arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-5000:]
    # PySpark would print one when its JVM exits.
    assert "Traceback" not in process.stderr, process.stderr[-5000:]
    result = json.loads(process.stdout.splitlines()[-1])
    quickstart, hot = (
        {name: Path(place) for name, place in result[kind].items()}
        for kind in ("quickstart", "hot")
    )
    return Outputs(quickstart, hot, result["plan"])


def files_of(place: Path) -> dict[str, bytes]:
    """Return the content of the output's file and of its marker."""
    files = {file.name: file.read_bytes() for file in place.iterdir()}
    assert SUCCESS_MARKER in files and len(files) == 2
    return files


def _run(arguments: dict[str, Any]) -> dict[str, Any]:
    root, dsn = Path(arguments["root"]), arguments.get("dsn")
    settings = SparkSettings(
        FileStore(root / "objects"),
        root / "spark",
        master=arguments["master"],
        rpc_pools={"default": (arguments["rpc_url"],)},
        spark_conf=arguments["conf"],
        data_dsn=dsn,
    )
    runner = SparkRunner(settings)
    hot, plan = {}, ""
    try:
        runner.warm()
        payloads = run_dag(runner, _QUICKSTART, 0, 59, 20)
        if dsn:
            hot = hot_tasks(arguments["inputs"], arguments["where"])
            for payload in hot.values():
                runner.run(payload)
            logs = {**arguments["inputs"]["logs"], "where": arguments["where"]}
            plan = filtered_plan(runner, dsn, logs)
    finally:
        runner.close()
    quickstart = {
        f"{job}.{output.name}.{start}": str(directory(root / "objects", payload, output.name))
        for (job, start), payload in payloads.items()
        for output in payload.outputs
    }
    places = {
        name: str(directory(root / "objects", payload, "answer"))
        for name, payload in hot.items()
        if name != "append"
    }
    return {"quickstart": quickstart, "hot": places, "plan": plan}


if __name__ == "__main__":
    print(json.dumps(_run(json.load(sys.stdin))))
