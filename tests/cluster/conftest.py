"""One chain, and the outputs of the quickstart DAG on local threads."""

from collections.abc import Generator
from pathlib import Path

import pytest

from support.dag_outputs import dag_outputs
from trace_etl.devtools.devchain import DevChain, start_server


@pytest.fixture(scope="session")
def rpc_url() -> Generator[str]:
    with start_server(DevChain(seed=7, length=60, txs_per_block=6)) as chain:
        yield chain.url


@pytest.fixture(scope="session")
def local(rpc_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of every output, as the reference."""
    return dag_outputs("local[2]", tmp_path_factory.mktemp("local"), rpc_url, {})
