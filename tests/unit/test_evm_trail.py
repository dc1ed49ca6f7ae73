"""Blocks held against blocks read: what is new, and what does not belong."""

import json
from itertools import pairwise

import pytest

from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.options import EvmOptions
from trace_etl.spark.evm.recent_blocks import Link, Mark, Trail
from trace_etl.spark.evm.stream import EvmStreamReader, offset_at


def _mark(number: int, fork: str = "a") -> Mark:
    return Mark(number, f"{fork}{number}".encode().rjust(32))


def _links(first: int, last: int, fork: str = "a", root: str | None = None) -> list[Link]:
    """Blocks of a fork; `root` names the fork that the first of them stands on."""
    marks = [_mark(first - 1, root or fork), *(_mark(n, fork) for n in range(first, last + 1))]
    return [Link(mark, below.hash) for below, mark in pairwise(marks)]


HELD = Trail(_mark(number) for number in range(10, 15))


@pytest.mark.parametrize(
    ("links", "fresh"),
    [
        (_links(15, 17), (15, 17)),
        (_links(12, 17), (15, 17)),
        (_links(11, 13), ()),
        (_links(13, 16, "b", root="a"), (13, 16)),
        ([*_links(11, 12), *_links(13, 13, "b", root="a")], (13, 13)),
        (_links(16, 17), None),
        (_links(15, 17, "b"), None),
        (_links(10, 17, "b"), None),
        ([*_links(15, 16), *_links(17, 18, "b")], None),
        ([*_links(15, 16), *_links(18, 19)], None),
    ],
    ids=[
        "next",
        "some_held",
        "all_held",
        "fork",
        "held_then_fork",
        "gap",
        "other_parent",
        "nothing_in_common",
        "mixed",
        "hole",
    ],
)
def test_what_is_fresh_goes_on_top_of_what_is_held(
    links: list[Link], fresh: tuple[int, ...] | None
) -> None:
    found = HELD.fresh(links, start=0)
    numbers = None if found is None else [link.mark.number for link in found]
    assert numbers == (
        None if fresh is None else list(range(fresh[0], fresh[1] + 1)) if fresh else []
    )


def test_a_trail_of_nothing_takes_blocks_from_the_start_only() -> None:
    assert Trail().fresh(_links(5, 6), start=5) == _links(5, 6)
    assert Trail().fresh(_links(6, 7), start=5) is None


def _options(offset: str) -> dict[str, str]:
    url = "http://127.0.0.1:9"
    return {"rpc_url": url, "dataset": "blocks", "start": "0", "starting_offset": offset}


def test_a_stream_begins_where_somebody_else_remembers() -> None:
    offset = offset_at(HELD)
    reader = EvmStreamReader(EvmOptions.parse(_options(json.dumps(offset))))
    assert reader.initialOffset() == offset
    assert (offset["number"], offset["hash"]) == (14, f"0x{_mark(14).hash.hex()}")


@pytest.mark.parametrize(
    "change",
    [{"trail": "00"}, {"hash": "0x00"}, {"number": 3}, {"trail": ""}, {"number": None}],
    ids=["short", "other_hash", "too_low", "empty", "no_number"],
)
def test_a_strange_starting_offset_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadTask, match="starting_offset"):
        EvmOptions.parse(_options(json.dumps({**offset_at(HELD), **change})))
