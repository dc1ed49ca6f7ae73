"""The same DAG on a real standalone cluster and on this machine's threads: the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.standalone import SETTINGS, standalone_cluster
from trace_etl.devchain import DevChain, start_server
from trace_etl.model.storage import SUCCESS_MARKER


def _run(master: str, root: Path, rpc_url: str, conf: dict[str, str]) -> dict[str, Path]:
    objects = root / "objects"
    arguments = [master, str(objects), str(root / "spark"), rpc_url, json.dumps(conf)]
    done = subprocess.run(
        [sys.executable, "-m", "support.dag_runs", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    places = json.loads(done.stdout.splitlines()[-1])
    return {name: objects / "trace" / place for name, place in places.items()}


@pytest.mark.timeout(600)  # five JVMs, one after the other
def test_the_quickstart_gives_the_same_bytes_on_a_cluster(tmp_path: Path) -> None:
    with start_server(DevChain(seed=7, length=60, txs_per_block=6)) as chain:
        local = _run("local[2]", tmp_path / "local", chain.url, {})
        with standalone_cluster(tmp_path / "cluster", workers=2) as master:
            conf = {**SETTINGS, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1])}
            spread = _run(master, tmp_path / "spread", chain.url, conf)
            worked = [
                place.name
                for worker in ("worker0", "worker1")
                for place in (tmp_path / "cluster" / worker / "work").glob("app-*/*")
            ]
    assert len(worked) == 2  # each worker ran an executor
    assert local.keys() == spread.keys() and len(local) == 12
    for name, place in local.items():
        ours, theirs = (
            {file.name: file.read_bytes() for file in where.iterdir()}
            for where in (place, spread[name])
        )
        assert SUCCESS_MARKER in ours and len(ours) == 2
        assert ours == theirs, name
