"""Nodes whose head is wrong: they lag behind the chain, or report a head that does not exist."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from support.chain.faulty_node import Calls, FaultyNode


@contextmanager
def lagging_node(url: str, find_head: Callable[[], int]) -> Generator[FaultyNode]:
    """Run a node that has no block above the one that `find_head` returns."""

    def lag(calls: Calls) -> None:
        for call in calls:
            if call["params"][:1] == ["latest"]:
                call["params"][0] = hex(find_head())

    def hide(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            number = (call["params"] or ["0x0"])[0]
            if number.startswith("0x") and int(number, 16) > find_head():
                item["result"] = None
        return items

    with FaultyNode(url, change=lag, after=hide) as node:
        yield node


@contextmanager
def boasting_node(url: str) -> Generator[FaultyNode]:
    """Run a node that reports a head a million blocks above the real one."""

    def boast(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["params"][:1] == ["latest"]:
                head = item["result"]
                head |= {"number": hex(int(head["number"], 16) + 10**6), "hash": "0x" + "ab" * 32}
        return items

    with FaultyNode(url, after=boast) as node:
        yield node
