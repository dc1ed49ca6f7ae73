"""One warm Spark session per test process, one chain and one object store."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.chain.faulty_node import FaultyNode
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

LENGTH = 60


@pytest.fixture(scope="session")
def chain() -> DevChain:
    """The expected chain. An identical one is served over RPC."""
    return DevChain(seed=7, length=LENGTH, txs_per_block=6)


@pytest.fixture(scope="session")
def rpc_url() -> Generator[str]:
    with start_server(DevChain(seed=7, length=LENGTH, txs_per_block=6)) as running:
        yield running.url


@pytest.fixture
def node(rpc_url: str) -> Generator[FaultyNode]:
    """A proxy in front of the chain that can change requests and answers."""
    with FaultyNode(rpc_url) as made:
        yield made


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="session")
def pools(rpc_url: str) -> dict[str, tuple[str, ...]]:
    """The RPC pools of the runner. A test may add one under its own name."""
    return {"default": (rpc_url,)}


@pytest.fixture(scope="session")
def runner(
    objects: Path, pools: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Generator[SparkRunner]:
    scratch = tmp_path_factory.mktemp("spark")
    master = os.environ.get("TRACE_TEST_MASTER", "local[2]")  # `make test-cluster` sets others
    made = SparkRunner(SparkSettings(FileStore(objects), scratch, master=master, rpc_pools=pools))
    made.warm()
    yield made
    made.close()


@pytest.fixture(scope="session")
def spark(runner: SparkRunner) -> SparkSession:
    return runner.session.get()
