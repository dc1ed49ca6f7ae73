"""One whole stack for all tests that do not need another configuration.

It starts in a home that the last release made, as most stacks do, so all these tests run after an upgrade.
"""

from collections.abc import Generator
from urllib.parse import quote

import pytest

from support.chain.keyed_node import NODE_KEY, KeyedNode
from support.chain.lying_node import LyingNode, list_pools, running_liar
from support.services import release_home
from support.services.whole_stack import LAST_BLOCK, Stack, running_stack, wait_until_completed

RUNTIMES = """
small_functions: {launcher: sandbox, trust: untrusted, language: python, memory_mib: 256, slots: 1}
open_functions: {launcher: sandbox, trust: untrusted, language: node, isolation: reduced, slots: 1}
"""
"""Entries beside the shipped runtimes."""


@pytest.fixture(scope="session")
def keyed_node() -> Generator[KeyedNode]:
    """A node whose URL has a key, which the stack knows as the secret `node_key`."""
    node = KeyedNode(quote(NODE_KEY, ""))
    yield node
    node.close()


@pytest.fixture(scope="session")
def liar() -> Generator[LyingNode]:
    """A node that tells every lie, each at another URL."""
    with running_liar() as made:
        yield made


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, keyed_node: KeyedNode, liar: LyingNode
) -> Generator[Stack]:
    home = tmp_path_factory.mktemp("stack") / "home"
    release_home.unpack(home)
    (home / "runtimes.yaml").write_text(RUNTIMES)
    (home / "secrets").mkdir(mode=0o700, exist_ok=True)
    (home / "secrets" / "node_key").write_text(f"{NODE_KEY}\n")
    keyed = f"keyed={keyed_node.url}/v3/${{secret:node_key}}"
    with running_stack(home, keyed, *list_pools(liar)) as made:
        keyed_node.upstream = made.node.url
        yield made


@pytest.fixture(scope="session")
def calm(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The stack after it ran the quickstart as the DAG `calm`, in eight ranges."""
    stack.deploy("calm", tmp_path_factory.mktemp("calm"))
    stack.json("trigger", "calm", "request", "--range", f"0-{LAST_BLOCK}")
    wait_until_completed(stack, "calm")
    return stack
