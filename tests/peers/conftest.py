"""One recorded chain that every tool reads."""

from collections.abc import Generator

import pytest

from trace_etl.devtools.devchain import DevChain, start_server

LENGTH = 200


def new_chain() -> DevChain:
    return DevChain(seed=5, length=LENGTH, txs_per_block=8)


@pytest.fixture(scope="session")
def rpc_url() -> Generator[str]:
    with start_server(new_chain()) as server:
        yield server.url
