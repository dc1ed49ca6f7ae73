"""The same DAG on a real standalone cluster and on local threads gives the same bytes."""

from pathlib import Path

from support.spark.dag_outputs import Outputs, files_of, run_outputs
from support.spark.standalone import SETTINGS, standalone_cluster


def test_the_quickstart_gives_the_same_bytes_on_a_cluster(
    tmp_path: Path, rpc_url: str, local: Outputs
) -> None:
    with standalone_cluster(tmp_path / "cluster", executors=2) as master:
        conf = {**SETTINGS, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1])}
        spread = run_outputs(master, tmp_path / "spread", rpc_url, conf).quickstart
        executors = [*(tmp_path / "cluster" / "worker" / "work").glob("app-*/*")]
    assert len(executors) == 2
    assert local.quickstart.keys() == spread.keys() and len(spread) == 12
    for name, place in local.quickstart.items():
        assert files_of(place) == files_of(spread[name]), name
