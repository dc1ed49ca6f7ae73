"""One chain and its hot tables, and the outputs of the same tasks on local threads."""

from collections.abc import Generator

import pytest

from support.chain.chain_rows import expected
from support.data.hot_tables import HotTables, InputSpec, hot_tables
from support.services.postgres import Templates
from support.spark.dag_outputs import Outputs, run_outputs
from trace_etl.devtools.devchain import DevChain, start_server


@pytest.fixture(scope="session")
def chain() -> DevChain:
    return DevChain(seed=7, length=60, txs_per_block=6)


@pytest.fixture(scope="session")
def rpc_url() -> Generator[str]:
    with start_server(DevChain(seed=7, length=60, txs_per_block=6)) as server:
        yield server.url


@pytest.fixture(scope="session")
def tables(templates: Templates, rpc_url: str) -> Generator[HotTables]:
    with hot_tables(templates, rpc_url) as made:
        yield made


@pytest.fixture(scope="session")
def where(chain: DevChain) -> InputSpec:
    """A filter of logs by the address of the first log."""
    return {"address": "0x" + expected(chain, 5, 20)["logs"][0]["address"].hex()}


@pytest.fixture(scope="session")
def local(
    rpc_url: str, tables: HotTables, where: InputSpec, tmp_path_factory: pytest.TempPathFactory
) -> Outputs:
    """The reference."""
    return run_outputs("local[2]", tmp_path_factory.mktemp("local"), rpc_url, {}, tables, where)
