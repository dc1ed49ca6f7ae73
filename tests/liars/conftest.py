"""One node that tells every lie, and one stack that reads from it."""

from collections.abc import Generator

import pytest

from support.chain.lying_node import FAULTS, LAST, LyingNode
from support.services.whole_stack import Stack, running_stack
from trace_etl.devtools.devchain import DevChain


def new_chain(seed: int = 21) -> DevChain:
    return DevChain(seed=seed, length=LAST + 1, txs_per_block=6)


@pytest.fixture(scope="session")
def chain() -> DevChain:
    return new_chain()


@pytest.fixture(scope="session")
def node() -> Generator[LyingNode]:
    with LyingNode(new_chain(), new_chain(22), LAST) as made:
        yield made


@pytest.fixture(scope="session")
def stack(node: LyingNode, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    """A stack with two RPC pools for each lie: the liar alone, and with an honest endpoint."""
    urls: list[str] = []
    for name in FAULTS:
        alone, honest = node.url(name), f"{node.url('honest')}/{name}"
        urls += [f"{name}={alone}", f"{name}_helped={alone}", f"{name}_helped={honest}"]
    with running_stack(tmp_path_factory.mktemp("liars") / "home", *urls) as made:
        yield made
