"""The same DAG on a real standalone cluster and on local threads gives the same bytes."""

from pathlib import Path

import pytest

from support.dag_outputs import dag_outputs, files_of
from support.standalone import SETTINGS, standalone_cluster


@pytest.mark.timeout(600)  # starts five JVMs
def test_the_quickstart_gives_the_same_bytes_on_a_cluster(
    tmp_path: Path, rpc_url: str, local: dict[str, Path]
) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=2) as master:
        conf = {**SETTINGS, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1])}
        spread = dag_outputs(master, tmp_path / "spread", rpc_url, conf)
        executors = [
            place.name
            for worker in ("worker0", "worker1")
            for place in (tmp_path / "cluster" / worker / "work").glob("app-*/*")
        ]
    assert len(executors) == 2  # each worker ran an executor
    assert local.keys() == spread.keys() and len(local) == 12
    for name, place in local.items():
        assert files_of(place) == files_of(spread[name]), name
